"""`status`: what runs, what it holds, how fast it is; also when nothing runs.

Exit codes: 0 ready, 1 dead or given up, 3 stopped, 4 not installed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swiftlm_proto.exit_codes import CtlExit
from swiftlmctl.commands.options import Json

if TYPE_CHECKING:
    from swiftlm_proto import messages as m

_RETRY_S = 1.0

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Go on until Ctrl-C.")]
Interval = Annotated[float, typer.Option("--interval", min=0.1, help="Seconds, with --watch.")]


def register(app: typer.Typer) -> None:
    app.command()(status)


def status(watch: Watch = False, interval: Interval = 1.0, json: Json = False) -> None:
    """Show the daemon, its models, memory and speed."""
    from swiftlm_proto.paths import locate
    from swiftlmctl import client, output
    from swiftlmctl.errors import CtlError
    from swiftlmctl.service import choose
    from swiftlmctl.views import status_table

    if watch:
        _watch(interval, json)
        return

    async def greet(daemon: client.Daemon) -> m.DaemonStatus:
        return daemon.status

    paths = locate()
    try:
        running = client.call(greet, any_protocol=True)
    except CtlError as e:
        _show_absent(paths, e, json)
        raise typer.Exit(int(_absent_code(e))) from None
    service = choose(paths).state()
    if json:
        output.show_json({**output.plain(running), "service": output.plain(service)})
    else:
        for part in status_table.lines(running, service):
            output.say(part)


def _absent_code(error: Any) -> CtlExit:
    """Stopped and not installed keep their own codes; all else is "something is wrong"."""
    quiet = (CtlExit.NOT_RUNNING, CtlExit.NOT_INSTALLED, CtlExit.DENIED)
    return error.code if error.code in quiet else CtlExit.FAILED


_STATES = {
    CtlExit.NOT_RUNNING: "stopped",
    CtlExit.NOT_INSTALLED: "not installed",
    CtlExit.TIMEOUT: "starting",
}


def _show_absent(paths: Any, error: Any, json: bool) -> None:
    from swiftlm_proto.version import version
    from swiftlmctl import output
    from swiftlmctl.service import choose, not_running

    if not json:
        output.say(error.text())
        return
    fatal = not_running.fatal_reason(paths)
    output.show_json(
        {
            "state": "fatal" if fatal else _STATES.get(error.code, "failed"),
            "reason": error.message,
            "hint": error.hint,
            "version": version(),
            "service": output.plain(choose(paths).state()),
        }
    )


def _watch(interval: float, json: bool) -> None:
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output
    from swiftlmctl.errors import CtlError
    from swiftlmctl.views import status_table

    seen = waiting = False

    async def verb(daemon: client.Daemon) -> None:
        nonlocal seen, waiting
        seen, waiting = True, False
        stream = daemon.admin.watch_status(m.WatchStatusRequest(interval_s=interval))
        if json:
            async for news in stream:
                output.show_json_line(news)
        elif output.on_terminal():
            await status_table.live(stream)
        else:
            async for news in stream:
                output.say(status_table.one_line(news))

    while True:
        try:
            client.call(verb)
        except CtlError as error:
            # What was there once comes back: a restart and an upgrade are what one watches.
            if not seen or error.code in (CtlExit.DENIED, CtlExit.VERSION_MISMATCH):
                raise
            if not waiting:
                output.warn(f"{error.message}; waiting for it to come back (Ctrl-C ends this)")
            waiting = True
        time.sleep(_RETRY_S)
