"""Waits until a started daemon answers, and explains it when it does not."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swiftlm_proto.exit_codes import CtlExit
from swiftlm_proto.paths import Paths
from swiftlmctl import client
from swiftlmctl.errors import CtlError
from swiftlmctl.service import Phase, ServiceManager, not_running
from swiftlmctl.service.base import EXIT_GRACE_S, EXIT_TIMEOUT_S
from swiftlmctl.service.job import STDERR_LOG

if TYPE_CHECKING:
    from swiftlm_proto import messages as m

# As the daemon calls its state once it was told to stop.
DRAINING = "draining"
_POLL_S = 0.2
_LAST_LINES = 20
# Asking the supervisor costs a process, so it is asked less often than the socket.
_LOOK_EVERY = 5


@dataclass(frozen=True, slots=True)
class Before:
    """What there was before the daemon was started."""

    pid: int  # of one that was there already; 0 = none
    said: int  # bytes that were written outside the log


def look(paths: Paths, manager: ServiceManager) -> Before:
    return Before(manager.state().pid, _said_so_far(paths))


def wait(paths: Paths, manager: ServiceManager, wait_s: float, before: Before) -> m.DaemonStatus:
    """The first status of the daemon; raises `CtlError` as soon as it is clear that none comes.

    One that is leaving is not meant: it is waited for, and the next one is started.
    """
    deadline = time.monotonic() + wait_s
    turn, leaving, said = 0, before.pid, before.said
    while True:
        status = _greeting(paths)
        if status is not None and status.state != DRAINING:
            return status
        leaving = status.pid if status is not None else leaving
        turn += 1
        if leaving and manager.state().pid != leaving:
            leaving = 0
            manager.start()
        elif turn % _LOOK_EVERY == 0 and not leaving:
            _refuse_dead(paths, manager, said)
        if time.monotonic() >= deadline:
            raise _still_leaving(leaving) if leaving else _not_ready(paths, manager, wait_s, said)
        time.sleep(_POLL_S)


def let_leave(paths: Paths, manager: ServiceManager) -> None:
    """Waits for a daemon that was told to stop: nobody can start one beside it."""
    status = _greeting(paths)
    if status is None or status.state != DRAINING:
        return
    deadline = time.monotonic() + EXIT_TIMEOUT_S + EXIT_GRACE_S
    while manager.state().pid == status.pid:
        if time.monotonic() >= deadline:
            raise _still_leaving(status.pid)
        time.sleep(_POLL_S)


def _greeting(paths: Paths) -> m.DaemonStatus | None:
    """What a daemon says of itself; None when nobody answers, or leaves while it is asked."""

    async def greet(daemon: client.Daemon) -> m.DaemonStatus:
        return daemon.status

    if not client.is_running(paths):
        return None
    try:
        return client.call(greet, wait_s=0, any_protocol=True)
    except CtlError:
        if client.is_running(paths):
            raise
        return None


def _still_leaving(pid: int) -> CtlError:
    return CtlError(
        f"the daemon that was told to stop (process {pid}) still runs",
        hint="`swiftlmctl stop --force` kills it (requests in flight are lost)",
        code=CtlExit.TIMEOUT,
    )


def _refuse_dead(paths: Paths, manager: ServiceManager, said: int) -> None:
    state = manager.state()
    stopped = state.phase in (Phase.STOPPED, Phase.FAILED) or bool(not_running.fatal_reason(paths))
    if stopped and not state.pid:
        error = not_running.from_state(paths, state)
        raise CtlError(
            f"{error.message}\n{last_words(paths, said)}".rstrip(),
            hint=error.hint,
            code=CtlExit.FAILED,
        )


def _not_ready(paths: Paths, manager: ServiceManager, wait_s: float, said: int) -> CtlError:
    state = manager.state()
    return CtlError(
        f"swiftlmd did not answer within {wait_s:.0f} s ({state.manager}: {state.phase.value} "
        f"{state.detail})\n{last_words(paths, said)}".rstrip(),
        hint="`swiftlmctl logs -n 50`, `swiftlmctl logs --stderr`",
        code=CtlExit.TIMEOUT,
    )


def _said_so_far(paths: Paths) -> int:
    """Bytes that daemons wrote outside their own logging until now."""
    try:
        return (paths.logs / STDERR_LOG).stat().st_size
    except OSError:
        return 0


def last_words(paths: Paths, said: int) -> str:
    """The last lines of it since then; of all of it where the file was cut meanwhile."""
    try:
        written = (paths.logs / STDERR_LOG).read_bytes()
    except OSError:
        return ""
    text = (written[said:] if len(written) >= said else written).decode("utf-8", "replace")
    return "\n".join(f"  | {line}" for line in text.splitlines()[-_LAST_LINES:])
