"""The one thread that touches MLX: it loads, evaluates and frees.

Work reaches it as calls (`call`) or as steps: the calls that are here run, then a step if `step`
says there is work. An exception in a call belongs to its caller; an exception in a step ends the
loop, and so does one in a call behind which no step can succeed.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
IDLE_WAIT_S = 0.5
SOON_S = 0.01
# After so many looks that found nothing to do, only calls bring something new: a thread that wakes
# twice a second keeps a processor from sleeping.
IDLE_LOOKS, LONG_WAIT_S = 6, 60.0


class Steps(Protocol):
    """What the loop drives."""

    @property
    def has_work(self) -> bool: ...

    def step(self) -> None: ...

    def idle(self) -> bool:
        """Called about twice a second for a while when there is nothing to do, then once a minute;
        soon again when True."""


class MlxThread:
    """Starts at once; `stop` ends it after the current step."""

    def __init__(
        self,
        on_death: Callable[[BaseException], None],
        is_fatal: Callable[[BaseException], bool] = lambda error: False,
    ) -> None:
        """`on_death` runs on the dying thread when a step raised, or a call what is fatal."""
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._on_death = on_death
        self._is_fatal = is_fatal
        self._steps: Steps | None = None
        self._idle_wait_s = IDLE_WAIT_S
        self._num_idle_looks = 0  # in a row, without a step or work of a pause
        self._stopping = False
        self._ended = threading.Event()
        self.last_step_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="mlx", daemon=True)
        self._thread.start()

    def drive(self, steps: Steps) -> None:
        """Lets the loop run these steps from now on. Call on the MLX thread."""
        self._steps = steps

    def call(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """Runs `function` on the thread between two steps."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)
                if self._steps is not None and self._is_fatal(error):  # a load ends by its caller
                    raise

        self._calls.put(run)
        return future

    def post(self, function: Callable[..., Any], *args: Any) -> None:
        """Like `call` without an answer; an exception is logged."""

        def run() -> None:
            try:
                function(*args)
            except Exception:
                log.exception("call on the MLX thread failed")

        self._calls.put(run)

    def stop(self, timeout_s: float) -> bool:
        """Ends the loop behind all calls made so far; False when it did not come back in time.

        The thread itself stays, parked: MLX's thread-local state is torn down without the
        interpreter's lock, and a thread that ended crashed the process in one run of many.
        """
        self._calls.put(self._end)
        return self._ended.wait(timeout_s)

    def _end(self) -> None:
        self._stopping = True

    @property
    def step_age_s(self) -> float:
        """Seconds since the loop last came round, while there is work."""
        steps = self._steps
        if steps is None or not steps.has_work:
            return 0.0
        return time.monotonic() - self.last_step_at

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except BaseException as error:
            log.critical("the step loop died", exc_info=True)
            try:
                self._on_death(error)
            except Exception:  # the thread must stay, parked (see `stop`)
                log.exception("the end of the step loop could not be told")
        self._steps = None
        self._ended.set()
        threading.Event().wait()

    def _turn(self) -> None:
        steps = self._steps
        busy = steps is not None and steps.has_work
        self._run_calls(wait=not busy)
        if steps is None or self._stopping:
            return
        if steps.has_work:
            steps.step()
            self.last_step_at = time.monotonic()
            self._idle_wait_s, self._num_idle_looks = IDLE_WAIT_S, 0
        elif not busy:
            self.last_step_at = time.monotonic()
            self._idle_wait_s = self._look_idly(steps)

    def _look_idly(self, steps: Steps) -> float:
        """Does what pauses are for; returns when to look again, unless a call comes."""
        if steps.idle():
            self._num_idle_looks = 0
            return SOON_S
        self._num_idle_looks += 1
        return IDLE_WAIT_S if self._num_idle_looks < IDLE_LOOKS else LONG_WAIT_S

    def _run_calls(self, *, wait: bool) -> None:
        """Those that are here: one that comes meanwhile lets a step pass first, or callers that
        always have a next one would stop all sequences."""
        try:
            run = self._calls.get(block=wait, timeout=self._idle_wait_s if wait else None)
            if wait:
                self.last_step_at = time.monotonic()  # what begins now is not as old as the pause
            for _ in range(self._calls.qsize()):
                run()
                run = self._calls.get_nowait()
            run()
        except queue.Empty:
            return
