"""Waits until a started daemon answers, and explains it when it does not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from swiftlm_proto.exit_codes import CtlExit
from swiftlm_proto.paths import Paths
from swiftlmctl import client
from swiftlmctl.errors import CtlError
from swiftlmctl.service import Phase, ServiceManager, not_running
from swiftlmctl.service.job import STDERR_LOG

if TYPE_CHECKING:
    from swiftlm_proto import messages as m

_POLL_S = 0.2
_LAST_LINES = 20
# Asking the supervisor costs a process, so it is asked less often than the socket.
_LOOK_EVERY = 5


def wait(paths: Paths, manager: ServiceManager, wait_s: float, said: int) -> m.DaemonStatus:
    """The first status of the daemon; raises `CtlError` as soon as it is clear that none comes.

    `said` is how much it had written outside its log before it was started (`said_so_far`).
    """

    async def greet(daemon: client.Daemon) -> m.DaemonStatus:
        return daemon.status

    deadline = time.monotonic() + wait_s
    look = 0
    while True:
        if client.is_running(paths):
            return client.call(greet, wait_s=0, any_protocol=True)
        look += 1
        if look % _LOOK_EVERY == 0:
            _refuse_dead(paths, manager, said)
        if time.monotonic() >= deadline:
            raise _not_ready(paths, manager, wait_s, said)
        time.sleep(_POLL_S)


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


def said_so_far(paths: Paths) -> int:
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
