"""The engine process must not outlive the daemon that started it."""

from __future__ import annotations

import os
import threading
import time

from swiftlm_proto.exit_codes import EngineExit

POLL_S = 0.5


def exit_with_parent(parent_pid: int) -> None:
    """Ends this process, without cleaning up, soon after `parent_pid` stops being its parent.

    A thread of its own and `os._exit`: neither a busy event loop nor a stuck evaluation may keep
    an orphan alive with gigabytes in its hands.
    """

    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(POLL_S)
        os._exit(EngineExit.PARENT_GONE)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
