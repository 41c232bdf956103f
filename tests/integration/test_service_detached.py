"""The daemon without a supervisor: started apart, found by its lock, stopped by a signal."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import time
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


# Many threads, which outlive the first one for a moment when all are killed.
THREADED = """
import fcntl, sys, threading, time
lock = open(sys.argv[1], "a")
fcntl.flock(lock, fcntl.LOCK_EX)
ballast = bytearray(64 << 20)
for _ in range(32):
    threading.Thread(target=time.sleep, args=(600,)).start()
time.sleep(600)
"""


class FastClock:
    def monotonic(self) -> float:
        return time.monotonic() * 10

    def sleep(self, seconds: float, /) -> None:
        time.sleep(seconds / 10)


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


@pytest.mark.parametrize("times", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_forced_restart_always_comes_back(paths: Paths, times: int) -> None:
    arguments = (sys.executable, "-I", "-S", "-c", THREADED, str(paths.lock_file))
    job = Job(arguments, paths.app, paths.logs / "launchd.log")
    made = DetachedDaemon(job, paths, environ=os.environ, clock=FastClock())
    made.start()
    for _ in range(times):
        assert eventually(lambda: made.state().phase is Phase.RUNNING)
        before = made.state().pid
        made.restart(force=True)
        assert made.state().pid not in (0, before)
    made.stop(force=True)
    assert made.state().phase is Phase.STOPPED


@pytest.mark.parametrize("verb", ["stop", "uninstall"])
def test_daemon_in_its_first_second_is_stopped_too(paths: Paths, verb: str) -> None:
    words = ("/bin/sh", "-c", "sleep 600")  # no lock yet, no socket
    daemon(paths, *words).start()
    other = daemon(paths, *words)  # another command, which did not start it
    state = other.state()
    assert (state.phase, alive(state.pid)) == (Phase.STARTING, True)
    other.start()
    assert other.state().pid == state.pid
    getattr(other, verb)()
    assert not alive(state.pid)
    assert other.state().phase is Phase.STOPPED


def test_a_number_that_another_process_has_by_now_is_not_ours(paths: Paths) -> None:
    made = daemon(paths, "/bin/sleep", "600")
    record = paths.state / "started.json"
    record.write_text(json.dumps({"pid": os.getpid(), "since": "1"}))
    assert made.state().phase is Phase.STOPPED
    record.write_text("")
    made.stop()


def test_start_makes_the_folder_it_runs_in(paths: Paths) -> None:
    shutil.rmtree(paths.app)
    made = daemon(paths, "/bin/sleep", "600")
    made.start()
    assert paths.app.is_dir()
    made.stop(force=True)


@pytest.mark.parametrize("after_s", [0.1, 0.3, 0.6])
def test_a_real_daemon_told_to_stop_while_it_imports_ends_with_zero(
    paths: Paths, room_path: str, after_s: float
) -> None:
    """launchd would start it again for any other code."""
    words = [sys.executable, "-X", "importtime", "-m", "swiftlmd", "serve"]
    environ = {**os.environ, "PYTHONPATH": room_path, "SWIFTLM_HOME": str(paths.app)}
    with subprocess.Popen(words, env=environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "swiftlm_proto" not in process.stderr.readline():  # past Python's own start
            assert process.poll() is None
        time.sleep(after_s)
        process.terminate()
        process.stderr.close()
        assert process.wait(20) == 0


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


def test_a_lock_of_the_same_number_on_another_disk_is_another(tmp_path: Path) -> None:
    path, table = tmp_path / "lock", tmp_path / "locks"
    path.touch()
    held = path.stat()
    device = f"{os.major(held.st_dev):02x}:{os.minor(held.st_dev):02x}"
    other = f"1: FLOCK  ADVISORY  WRITE 1 ff:fe:{held.st_ino} 0 EOF\n"
    table.write_text(other)
    assert lock_holder(path, table) == 0
    table.write_text(f"{other}2: FLOCK  ADVISORY  WRITE 4321 {device}:{held.st_ino} 0 EOF\n")
    assert lock_holder(path, table) == 4321


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
