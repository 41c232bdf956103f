"""`start`, `stop`, `restart` and the `service` group: the daemon as the system runs it.

Success is said only after the daemon answers, not when the supervisor has accepted the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from swiftlmctl.commands.options import Json

if TYPE_CHECKING:
    from swiftlm_proto.paths import Paths
    from swiftlmctl.commands.wait_ready import Before
    from swiftlmctl.service import ServiceManager

Wait = Annotated[
    float,
    typer.Option(
        "--wait", min=0, help="Seconds to wait for the daemon to answer; 0 = do not wait."
    ),
]
Kill = Annotated[
    bool, typer.Option("--force", help="Kill the daemon; requests in flight are lost.")
]
Activation = Annotated[
    bool, typer.Option("--socket-activation", help="Let launchd or systemd own the admin socket.")
]
NoStart = Annotated[bool, typer.Option("--no-start", help="Register the service, do not start it.")]

# A first start after an upgrade may be held up by the malware scan.
_READY_S = 90.0


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Install, remove and run swiftlmd as a service.", no_args_is_help=True)
    for place in (app, group):
        place.command()(start)
        place.command()(stop)
        place.command()(restart)
    for verb in (install, uninstall, enable, disable):
        group.command()(verb)
    group.command("status")(service_status)
    app.add_typer(group, name="service")


def start(wait: Wait = _READY_S) -> None:
    """Start the daemon, even if it stopped restarting itself."""
    from swiftlmctl.commands import config_file, wait_ready

    paths, manager = _here()
    config_file.refuse_broken("start")
    paths.fatal_file.unlink(missing_ok=True)
    wait_ready.let_leave(paths, manager)
    before = wait_ready.look(paths, manager)
    manager.start()
    _report_ready(paths, manager, wait, before)


def stop(force: Kill = False) -> None:
    """Stop the daemon when requests in flight have ended.

    Waits as long as service.drain says."""
    from swiftlmctl import output

    _, manager = _here()
    manager.stop(force=force)
    output.say("swiftlmd is stopped")


def restart(force: Kill = False, wait: Wait = _READY_S) -> None:
    """Stop the daemon gracefully and start it again."""
    from swiftlmctl.commands import config_file, wait_ready

    paths, manager = _here()
    config_file.refuse_broken("restart")
    paths.fatal_file.unlink(missing_ok=True)
    said = wait_ready.look(paths, manager).said
    manager.restart(force=force)
    _report_ready(paths, manager, wait, wait_ready.Before(pid=0, said=said))


def install(no_start: NoStart = False, socket_activation: Activation = False) -> None:
    """Register the daemon to start at login, and start it."""
    import os

    from swiftlmctl import output
    from swiftlmctl.service.job import job_for

    paths, manager = _here()
    job = job_for(paths, os.environ, socket_activation=socket_activation)
    for path in manager.install(job):
        output.say(f"wrote {path}")
    if manager.name == "none":
        output.say(
            "neither launchd nor a systemd user session here: the daemon runs detached, "
            "nothing restarts it, and it does not start at login"
        )
    if not no_start:
        start()


def uninstall() -> None:
    """Stop the daemon, remove the service; models stay."""
    from swiftlmctl import output

    _, manager = _here()
    for path in manager.uninstall():
        output.say(f"removed {path}")
    output.say("the service is gone")


def enable() -> None:
    """Let the daemon start at login."""
    from swiftlmctl import output

    _, manager = _here()
    manager.enable()
    output.say("swiftlmd starts at login")


def disable() -> None:
    """Stop the daemon and keep it from starting at login."""
    from swiftlmctl import output

    _, manager = _here()
    manager.disable()
    output.say("swiftlmd is stopped and does not start at login")


def service_status(json: Json = False) -> None:
    """Show what the supervisor knows: pid, runs, last exit."""
    from swiftlm_proto.exit_codes import CtlExit
    from swiftlmctl import output
    from swiftlmctl.service import Phase, not_running
    from swiftlmctl.views import report_tables

    paths, manager = _here()
    state = manager.state()
    fatal = not_running.fatal_reason(paths)
    if json:
        output.show_json({**output.plain(state), "fatal": fatal or None})
    else:
        for name, value in output.plain(state).items():
            if value is False or value:
                output.say(f"{report_tables.title(name)}: {report_tables.cell(name, value)}")
        if fatal:
            output.say(f"gave up: {fatal}")
    codes = {
        Phase.RUNNING: CtlExit.OK,
        Phase.STARTING: CtlExit.OK,
        Phase.STOPPED: CtlExit.NOT_RUNNING,
        Phase.STOPPING: CtlExit.NOT_RUNNING,
        Phase.NOT_INSTALLED: CtlExit.NOT_INSTALLED,
        Phase.FAILED: CtlExit.FAILED,
    }
    raise typer.Exit(int(CtlExit.FAILED if fatal else codes[state.phase]))


def _here() -> tuple[Paths, ServiceManager]:
    from swiftlm_proto.paths import locate
    from swiftlmctl.service import choose

    paths = locate()
    return paths, choose(paths)


def _report_ready(paths: Paths, manager: ServiceManager, wait_s: float, before: Before) -> None:
    from swiftlmctl import output
    from swiftlmctl.commands import wait_ready

    if wait_s == 0:
        output.say("swiftlmd is starting")
        return
    status = wait_ready.wait(paths, manager, wait_s, before)
    output.say(
        f"swiftlmd {status.version} is ready at http://{status.http_address} (pid {status.pid})"
    )
