"""doctor's checks: the ones around the daemon here, the ones inside it asked of the daemon."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Any  # JSON values

from swiftlm_proto import messages as m
from swiftlm_proto.exit_codes import CtlExit
from swiftlm_proto.paths import Paths, locate
from swiftlmctl import client, output
from swiftlmctl.errors import CtlError
from swiftlmctl.service import Phase, ServiceManager, ServiceState, choose, not_running
from swiftlmctl.service.job import STDERR_LOG, Job, job_for

_BIG_LOG_BYTES = 200_000_000


def all_checks() -> list[m.DoctorCheck]:
    paths = locate()
    manager = choose(paths)
    state = manager.state()
    around = [
        _service(state),
        _definition(state, job_for(paths, os.environ)),
        _interpreter(paths),
        _other_installations(paths),
        _folder(paths),
        _logs(paths),
        _fatal(paths),
    ]
    return around + _inside(paths, manager)


def daemon_status() -> dict[str, Any]:
    """As `status --json` shows it; {} where no daemon answers."""

    async def verb(daemon: client.Daemon) -> m.DaemonStatus:
        return await daemon.admin.status(m.StatusRequest())

    try:
        found: dict[str, Any] = output.plain(client.call(verb))
    except CtlError:
        return {}
    return found


def _inside(paths: Paths, manager: ServiceManager) -> list[m.DoctorCheck]:
    """The daemon's own checks, in the context it runs in."""

    async def verb(daemon: client.Daemon) -> list[m.DoctorCheck]:
        return (await daemon.admin.doctor(m.DoctorRequest(), timeout=60)).checks

    try:
        found = client.call(verb)
    except CtlError as e:
        status = "warn" if e.code in (CtlExit.NOT_RUNNING, CtlExit.NOT_INSTALLED) else "fail"
        reason = f"{e.message}; its own checks (device, memory, port, folders) were not made"
        return [m.DoctorCheck(name="daemon", status=status, reason=reason, fix=e.hint)]
    return [m.DoctorCheck(name="daemon", status="pass", reason="answers"), *found]


def _service(state: ServiceState) -> m.DoctorCheck:
    words = f"{state.manager}: {state.phase.value}, {state.detail}"
    if state.phase is Phase.FAILED:
        return _check(
            "service", "fail", f"{words}, last exit {state.last_exit}", "swiftlmctl start"
        )
    if state.phase is Phase.NOT_INSTALLED:
        return _check("service", "warn", "not installed", "swiftlmctl service install")
    if state.manager != "none" and not state.enabled:
        return _check(
            "service", "warn", f"{words}; does not start at login", "swiftlmctl service enable"
        )
    return _check("service", "pass", words)


def _definition(state: ServiceState, job: Job) -> m.DoctorCheck:
    """Whether the installed job is the one this version would write."""
    if state.definition is None:
        return _check("job definition", "pass", "none installed")
    wanted, found = _wanted(state, job), state.definition.read_bytes()
    mode = stat.S_IMODE(state.definition.stat().st_mode)
    fix = "swiftlmctl service install"
    if mode & 0o022:
        return _check("job definition", "fail", f"others may write {state.definition}", fix)
    if wanted == found:
        return _check("job definition", "pass", str(state.definition))
    return _check(
        "job definition", "warn", f"{state.definition} is not what this version writes", fix
    )


def _wanted(state: ServiceState, job: Job) -> bytes:
    if state.manager == "launchd":
        from swiftlmctl.service.plist import encode

        return encode(job)
    from swiftlmctl.service.unit import unit_text

    return unit_text(job).encode()


def _interpreter(paths: Paths) -> m.DoctorCheck:
    current = paths.app / "current"
    python = current / "bin" / "python3"
    if current.is_symlink() and not python.exists():
        return _check(
            "interpreter",
            "fail",
            f"{python} leads nowhere: its Python was removed or upgraded",
            "sh install.sh (makes a new environment)",
        )
    real = Path(sys.executable).resolve()
    return _check(
        "interpreter", "pass", f"Python {sys.version.split()[0]}, {real} (what macOS asks about)"
    )


def _other_installations(paths: Paths) -> m.DoctorCheck:
    """Programs of the same name in other places: the wrong one may be first in PATH."""
    ours = {Path(sys.prefix).resolve() / "bin", (paths.app / "current" / "bin").resolve()}
    others = []
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        program = Path(folder or ".") / "swiftlmctl"
        if os.access(program, os.X_OK) and program.resolve().parent not in ours:
            others.append(str(program))
    if others:
        return _check(
            "other installations", "warn", f"also here: {', '.join(others)}", "remove one of them"
        )
    return _check("other installations", "pass", "none in PATH")


def _folder(paths: Paths) -> m.DoctorCheck:
    if not paths.app.exists():
        return _check("folder", "warn", f"{paths.app} does not exist", "swiftlmctl service install")
    found = paths.app.stat()
    if found.st_uid != os.getuid():
        return _check("folder", "fail", f"{paths.app} belongs to user {found.st_uid}")
    free = shutil.disk_usage(paths.app).free
    if free < 2_000_000_000:
        return _check("folder", "warn", f"only {free / 1e9:.1f} GB free at {paths.app}")
    return _check("folder", "pass", f"{paths.app}, {free / 1e9:.0f} GB free")


def _logs(paths: Paths) -> m.DoctorCheck:
    try:
        total = sum(file.stat().st_size for file in paths.logs.iterdir() if file.is_file())
    except FileNotFoundError:
        return _check("logs", "pass", "none yet")
    except OSError as e:
        return _check("logs", "fail", f"{paths.logs}: {e.strerror}")
    if total > _BIG_LOG_BYTES:
        return _check(
            "logs", "warn", f"{total / 1e6:.0f} MB in {paths.logs}", f"empty {STDERR_LOG} there"
        )
    return _check("logs", "pass", f"{paths.logs}, {total / 1e6:.1f} MB")


def _fatal(paths: Paths) -> m.DoctorCheck:
    reason = not_running.fatal_reason(paths)
    if reason:
        return _check("last words", "fail", f"the daemon gave up: {reason}", "swiftlmctl start")
    return _check("last words", "pass", "no record of a daemon that gave up")


def _check(name: str, status: str, reason: str, fix: str = "") -> m.DoctorCheck:
    return m.DoctorCheck(name=name, status=status, reason=reason, fix=f"`{fix}`" if fix else "")
