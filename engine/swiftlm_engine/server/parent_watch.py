"""The engine process must not outlive the daemon that started it."""

from __future__ import annotations

import os
import select
import sys
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
        wait_for_end(parent_pid)
        while os.getppid() == parent_pid:
            time.sleep(POLL_S)  # where the kernel tells nobody, or before it gave us away
        os._exit(EngineExit.PARENT_GONE)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def wait_for_end(pid: int) -> None:
    """Sleeps until the process has ended, without waking for it; returns at once where the kernel
    has no such call or the process is not there."""
    try:
        if sys.platform == "darwin":
            _wait_by_kqueue(pid)
        elif hasattr(os, "pidfd_open"):
            _wait_by_pidfd(pid)
    except OSError:
        return


def _wait_by_pidfd(pid: int) -> None:
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
    finally:
        os.close(descriptor)


if sys.platform == "darwin":

    def _wait_by_kqueue(pid: int) -> None:
        end = select.kevent(
            pid,
            filter=select.KQ_FILTER_PROC,
            flags=select.KQ_EV_ADD | select.KQ_EV_ONESHOT,
            fflags=select.KQ_NOTE_EXIT,
        )
        queue = select.kqueue()
        try:
            queue.control([end], 1)
        finally:
            queue.close()
