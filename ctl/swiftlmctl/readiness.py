"""Waits until a started daemon answers, and explains it when it does not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from swiftlm_proto.exit_codes import CtlExit
from swiftlm_proto.paths import Paths
from swiftlmctl import absence, client
from swiftlmctl.errors import CtlError
from swiftlmctl.service import Phase, ServiceManager
from swiftlmctl.service.job import STDERR_LOG

if TYPE_CHECKING:
    from swiftlm_proto import messages as m

_POLL_S = 0.2
_LAST_LINES = 20
# Asking the supervisor costs a process, so it is asked less often than the socket.
_LOOK_EVERY = 5


def wait(paths: Paths, manager: ServiceManager, wait_s: float) -> m.DaemonStatus:
    """The first status of the daemon; raises `CtlError` as soon as it is clear that none comes."""

    async def greet(daemon: client.Daemon) -> m.DaemonStatus:
        return daemon.status

    deadline = time.monotonic() + wait_s
    look = 0
    while True:
        if client.is_running(paths):
            return client.call(greet, wait_s=0, any_protocol=True)
        look += 1
        if look % _LOOK_EVERY == 0:
            _refuse_dead(paths, manager)
        if time.monotonic() >= deadline:
            raise _not_ready(paths, manager, wait_s)
        time.sleep(_POLL_S)


def _refuse_dead(paths: Paths, manager: ServiceManager) -> None:
    state = manager.state()
    stopped = state.phase in (Phase.STOPPED, Phase.FAILED) or bool(absence.fatal_reason(paths))
    if stopped and not state.pid:
        error = absence.from_state(paths, state)
        raise CtlError(
            f"{error.message}\n{last_words(paths)}".rstrip(), hint=error.hint, code=CtlExit.FAILED
        )


def _not_ready(paths: Paths, manager: ServiceManager, wait_s: float) -> CtlError:
    state = manager.state()
    return CtlError(
        f"swiftlmd did not answer within {wait_s:.0f} s "
        f"({state.manager}: {state.phase.value} {state.detail})\n{last_words(paths)}".rstrip(),
        hint="`swiftlmctl logs -n 50`, `swiftlmctl logs --stderr`",
        code=CtlExit.TIMEOUT,
    )


def last_words(paths: Paths) -> str:
    """The last lines that the daemon wrote outside its own logging."""
    try:
        text = (paths.logs / STDERR_LOG).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(f"  | {line}" for line in text.splitlines()[-_LAST_LINES:])
