"""The daemon without a supervisor: started apart, found by its lock, stopped by a signal."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes_bin.control import eventually

from swiftlm_proto.exit_codes import CtlExit
from swiftlm_proto.paths import Paths, under
from swiftlmctl.errors import CtlError
from swiftlmctl.service import Phase
from swiftlmctl.service.detached import DetachedDaemon, alive, listener, lock_holder
from swiftlmctl.service.job import Job

# Holds the lock like the daemon, says so, and needs a moment to leave.
DAEMON = """
import fcntl, os, signal, sys, time
lock = open(sys.argv[1], "a")
fcntl.flock(lock, fcntl.LOCK_EX)
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.2), os._exit(0)))
while True:
    signal.pause()
"""


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = under(tmp_path / "app")
    made.state.mkdir(parents=True)
    return made


def daemon(paths: Paths, *arguments: str) -> DetachedDaemon:
    job = Job(arguments, paths.app, paths.logs / "launchd.log")
    return DetachedDaemon(job, paths, environ=os.environ)


@pytest.fixture
def sleeper(paths: Paths) -> Iterator[DetachedDaemon]:
    made = daemon(paths, sys.executable, "-I", "-S", "-c", DAEMON, str(paths.lock_file))
    yield made
    made.stop()


def test_started_daemon_is_found_by_its_lock_and_stopped(sleeper: DetachedDaemon) -> None:
    sleeper.start()
    assert eventually(lambda: sleeper.state().phase is Phase.RUNNING)
    state = sleeper.state()
    assert os.getsid(state.pid) == state.pid  # a session of its own: no terminal ends it
    sleeper.stop()
    assert sleeper.state().phase is Phase.STOPPED
    assert not alive(state.pid)


def test_second_start_starts_nothing(sleeper: DetachedDaemon) -> None:
    sleeper.start()
    assert eventually(lambda: sleeper.state().pid > 0)
    pid = sleeper.state().pid
    sleeper.start()
    assert sleeper.state().pid == pid


def test_restart_makes_a_new_process(sleeper: DetachedDaemon) -> None:
    sleeper.start()
    assert eventually(lambda: sleeper.state().pid > 0)
    pid = sleeper.state().pid
    sleeper.restart()
    assert eventually(lambda: sleeper.state().pid not in (0, pid))


def test_daemon_that_ends_at_once_is_reported_with_its_code(paths: Paths) -> None:
    with pytest.raises(CtlError, match="ended at once with code 78"):
        daemon(paths, "/bin/sh", "-c", "echo why >&2; exit 78").start()
    assert (paths.logs / "launchd.log").read_text() == "why\n"


def test_daemon_that_is_still_importing_counts_as_starting(paths: Paths) -> None:
    slow = daemon(paths, "/bin/sleep", "60")
    slow.start()
    state = slow.state()
    os.kill(state.pid, 9)
    assert state.phase is Phase.STARTING


def test_program_that_is_not_there_is_said(paths: Paths) -> None:
    with pytest.raises(CtlError, match="cannot start /nowhere/python3") as caught:
        daemon(paths, "/nowhere/python3").start()
    assert caught.value.code is CtlExit.FAILED


def test_nothing_starts_at_login(paths: Paths) -> None:
    with pytest.raises(CtlError, match="nothing starts at login"):
        daemon(paths, "/bin/true").enable()


def test_lock_holder_is_read_without_touching_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with open(path, "a") as lock:
        assert lock_holder(path) == 0
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert lock_holder(path) == os.getpid()
    assert lock_holder(tmp_path / "absent") == 0


def test_listener_is_named_by_the_kernel(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert listener(path) == 0
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert listener(path) == os.getpid()


def test_zombie_is_not_alive() -> None:
    process = subprocess.Popen(["/bin/true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not alive(process.pid)
    process.wait()
