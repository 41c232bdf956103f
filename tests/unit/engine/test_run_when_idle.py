"""What waits for the first pause of a loaded model."""

from __future__ import annotations

import threading

from swiftlm_engine.session.run_when_idle import RunWhenIdle


def test_work_that_can_wait_begins_in_a_pause_and_once() -> None:
    began: list[threading.Thread] = []
    is_done = threading.Event()

    def work() -> None:
        began.append(threading.current_thread())
        is_done.set()

    pause = RunWhenIdle(work)
    for steps in (0, 1, 2, 3):  # the first request comes at once, looks fall between its steps
        pause.idle(steps)
    assert not began
    pause.idle(3)
    assert is_done.wait(10)
    pause.idle(3)
    assert len(began) == 1
    assert began[0] is not threading.current_thread()
