"""An idle engine sleeps: its thread looks a few times, then waits for a call, and its watch over
the parent process costs no wake-up."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from swiftlm_engine.run import mlx_thread
from swiftlm_engine.run.mlx_thread import MlxThread
from swiftlm_engine.server.parent_watch import wait_for_end


class Pauses:
    """Steps without work, that count the looks at them."""

    def __init__(self, wants_to_go_on: int = 0) -> None:
        self.has_work = False
        self.looks = 0
        self.left = wants_to_go_on
        self.stepping, self.may_end = threading.Event(), threading.Event()

    def step(self) -> None:
        self.stepping.set()
        self.may_end.wait(30)
        self.has_work = False

    def idle(self) -> bool:
        self.looks += 1
        self.left -= 1
        return self.left >= 0


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlx_thread, "IDLE_WAIT_S", 0.001)
    monkeypatch.setattr(mlx_thread, "SOON_S", 0.001)


def until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.usefixtures("quick_looks")
@pytest.mark.parametrize("work", [0, 20])
def test_an_idle_thread_stops_looking_when_there_was_nothing_to_do(work: int) -> None:
    mlx, pauses = MlxThread(lambda error: None), Pauses(work)
    mlx.call(mlx.drive, pauses).result(30)
    until(lambda: pauses.looks >= work + mlx_thread.IDLE_LOOKS)
    time.sleep(0.1)  # a hundred of the pauses it made before
    assert pauses.looks <= work + mlx_thread.IDLE_LOOKS + 2
    assert mlx.call(lambda: 42).result(30) == 42  # a call is heard at once
    assert mlx.stop(30)


@pytest.mark.usefixtures("quick_looks")
def test_the_first_step_after_a_long_pause_is_not_as_old_as_the_pause() -> None:
    mlx, pauses = MlxThread(lambda error: None), Pauses()
    mlx.call(mlx.drive, pauses).result(30)
    until(lambda: pauses.looks >= mlx_thread.IDLE_LOOKS)
    mlx.last_step_at -= 1000.0  # as if the pause had lasted so long

    def begin() -> None:
        pauses.has_work = True

    mlx.call(begin).result(30)
    assert pauses.stepping.wait(30)
    assert mlx.step_age_s < 500
    pauses.may_end.set()
    assert mlx.stop(30)


def test_the_end_of_a_process_is_told_not_asked_for() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    told = threading.Event()

    def wait() -> None:
        wait_for_end(child.pid)
        told.set()

    threading.Thread(target=wait, daemon=True).start()
    assert not told.wait(0.05)
    assert child.stdin is not None
    child.stdin.close()
    assert told.wait(30)
    child.wait()


def test_a_process_that_is_gone_is_not_waited_for() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    wait_for_end(child.pid)
