"""`version`: this program, the protocol, and the daemon if one answers."""

from __future__ import annotations

import typer

from swiftlmctl.commands.options import Json


def register(app: typer.Typer) -> None:
    app.command()(version)


def version(json: Json = False) -> None:
    """Show the versions of this program and of the daemon."""
    from swiftlm_proto import messages as m
    from swiftlm_proto.version import version as own_version
    from swiftlmctl import client, output
    from swiftlmctl.errors import CtlError

    async def greet(daemon: client.Daemon) -> m.DaemonStatus:
        return daemon.status

    try:
        running = client.call(greet, wait_s=0, any_protocol=True)
    except CtlError:
        running = None
    if json:
        daemon = {"version": running.version, "protocol": running.protocol} if running else None
        output.show_json({"version": own_version(), "protocol": m.PROTOCOL, "daemon": daemon})
        return
    output.say(f"swiftlmctl {own_version()} (protocol {m.PROTOCOL})")
    if running is None:
        output.say("swiftlmd is not running")
    else:
        output.say(f"swiftlmd {running.version} (protocol {running.protocol}, pid {running.pid})")
