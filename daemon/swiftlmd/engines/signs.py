"""Signs of life of one engine: when it last answered, and what an engine that is silent does.

An engine is asked every second while it is busy. A long prefill answers all the same (another
thread does); one that was stopped, swapped out or deadlocked does not, or its steps do not end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import psutil

FEW_QUESTIONS = 3  # unanswered ones, after which somebody should know
LONG_STEP_S = 5.0  # a step that takes longer is worth a word


class Condition(StrEnum):
    IDLE = "idle"
    BUSY = "busy"  # it answers, and its steps end
    LONG_STEP = "in a long step"  # it answers
    STUCK = "stuck in a step"  # it answers, and computes nothing
    SILENT = "silent"  # and computing
    STOPPED = "stopped"  # by a signal
    PAGING = "waiting for the disk"  # as what is swapped out does
    HUNG = "hung"  # neither computing nor answering


class Doing(StrEnum):
    """What the system says of a process."""

    COMPUTING = "computing"
    WAITING = "waiting"
    STOPPED = "stopped"
    PAGING = "paging"


Observe = Callable[[int], Doing]


@dataclass(slots=True)
class Signs:
    """Kept by who asks the engine; times are of the monotonic clock."""

    answered_at: float
    asked_at: float = math.nan  # the first question that is open; NaN = none is
    num_unanswered: int = 0
    step_age_s: float = 0.0  # as it said when it last answered
    is_busy: bool = False
    doing: Doing = field(default=Doing.COMPUTING)

    def asked(self, now: float) -> None:
        if math.isnan(self.asked_at):
            self.asked_at = now

    def answered(self, now: float, step_age_s: float, *, is_busy: bool, doing: Doing) -> None:
        self.answered_at, self.asked_at, self.num_unanswered = now, math.nan, 0
        self.step_age_s, self.is_busy, self.doing = step_age_s, is_busy, doing

    def unanswered(self, doing: Doing) -> None:
        self.num_unanswered += 1
        self.doing = doing

    def silent_s(self, now: float) -> float:
        return 0.0 if math.isnan(self.asked_at) else now - self.asked_at

    def stuck_s(self, now: float) -> float:
        """Without an answer, or with a step that has not ended."""
        since_answer = now - self.answered_at if self.step_age_s else 0.0
        return max(self.silent_s(now), self.step_age_s + since_answer)

    def condition(self, now: float) -> Condition:
        if self.num_unanswered:
            return _SILENT[self.doing]
        if self.step_age_s > LONG_STEP_S:
            return Condition.STUCK if self.doing is Doing.WAITING else Condition.LONG_STEP
        return Condition.BUSY if self.is_busy else Condition.IDLE

    def warning(self, model: str, now: float) -> str:
        """What to tell after a few unanswered questions; else empty."""
        if self.num_unanswered < FEW_QUESTIONS:
            return ""
        condition = self.condition(now)
        return (
            f"the engine of '{model}' has not answered for {self.silent_s(now):.0f} s ({condition})"
        )


_SILENT = {
    Doing.COMPUTING: Condition.SILENT,
    Doing.WAITING: Condition.HUNG,
    Doing.STOPPED: Condition.STOPPED,
    Doing.PAGING: Condition.PAGING,
}


class ProcessObserver:
    """Tells a process that computes from one that waits by the CPU time between two looks."""

    def __init__(self) -> None:
        self._cpu_s: dict[int, float] = {}

    def __call__(self, pid: int) -> Doing:
        try:
            process = psutil.Process(pid)
            status, times = process.status(), process.cpu_times()
        except psutil.Error:
            return Doing.WAITING
        used = times.user + times.system
        before = self._cpu_s.pop(pid, None)
        self._cpu_s = {pid: used, **dict(list(self._cpu_s.items())[-63:])}
        if status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
            return Doing.STOPPED
        if status == psutil.STATUS_DISK_SLEEP:
            return Doing.PAGING
        return Doing.COMPUTING if before is None or used > before else Doing.WAITING


def unobserved(pid: int) -> Doing:
    """Where nothing is known of processes."""
    return Doing.COMPUTING
