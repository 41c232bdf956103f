"""Turn readings into acts: what to shrink, and whether a request may start.

Rules. Every verdict is computed from the newest readings; nothing latches. One bad reading is a
spike and moves nothing; two in a row do. Leaving a level takes readings below a lower mark for a
while. Shrinking comes before refusing, in this order: MLX's buffer pool, prefix cache, float32
weights, expert slots, refuse what is new, evict idle models. What the kernel charges the processes
counts, not what MLX says. What loaded models were granted is theirs: the marks lie above it.

The kernel's warning alone is a state that can last for hours on a Mac, not a spike: it takes one
step, and another, half a minute later, only if memory is swapped out or our own use grows.

No clock is read and no memory freed here: both are handed in and out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from statistics import median

from swiftlm_engine.brain.plan import SOFT_SHARE, gigabytes
from swiftlmd.memory.readings import Pressure, Reading


class Level(IntEnum):
    CALM = 0
    SOFT = 1
    HARD = 2


class Action(StrEnum):
    """What can be given back, the least painful first."""

    CLEAR_POOL = "clear buffer pool"
    SHRINK_PREFIX = "shrink prefix cache"
    PACK_WEIGHTS = "quantize expanded weights again"
    SHRINK_SLOTS = "shrink expert slots"
    TRIM_SLOTS = "shrink expert slots, down to where misses begin to hurt"
    EVICT_IDLE = "evict idle models"


_SOFT_ACTIONS = (
    Action.CLEAR_POOL,
    Action.SHRINK_PREFIX,
    Action.PACK_WEIGHTS,
    Action.SHRINK_SLOTS,
)


_WARNED_ACTIONS = (*_SOFT_ACTIONS[:-1], Action.TRIM_SLOTS)


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Shares of the budget at which a level starts and ends, and how long quiet must last."""

    soft: float = SOFT_SHARE  # what plans may grant
    soft_end: float = 0.80
    hard: float = 0.95
    hard_end: float = 0.90
    granted_soft: float = 1.04  # of what models were granted: prices are off by a few per cent
    granted_hard: float = 1.08
    quiet_s: float = 5.0
    warned_step_s: float = 30.0  # between two steps that only a warning asks for
    warned_growth: float = 1.03  # of our own use since the last step, to count as growing
    warned_stable_s: float = 180.0  # of a warning without swapping: it is no reason to stay small
    spike_readings: int = 2


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now. `reason` is for the log; empty when nothing changed."""

    level: Level
    actions: tuple[Action, ...] = ()
    reason: str = ""


class Answer(StrEnum):
    ADMIT = "admit"
    RECLAIM = "reclaim"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class PressureVerdict:
    """Whether bytes may be taken. RECLAIM: do `actions`, read again, ask again with `reclaimed`."""

    answer: Answer
    actions: tuple[Action, ...] = ()
    reason: str = ""
    never: bool = False  # of a refusal: not even an empty machine would have room


class Governor:
    """State: the level and the last few readings. One task owns it."""

    def __init__(
        self,
        budget_bytes: int,
        marks: Watermarks | None = None,
        granted: Callable[[], int] = lambda: 0,
    ) -> None:
        self._budget = budget_bytes
        self._marks = marks or Watermarks()
        self._granted = granted  # what loaded models are priced at
        self._level = Level.CALM
        self._streak = 0  # readings in a row that ask for more than the level
        self._bad = 0  # readings in a row on a level above CALM: how far down the list we are
        self._quiet_since: float | None = None
        self._warned_steps = 0  # taken for a warning alone, since the last calm
        self._stepped_at = 0.0  # when the last of them was taken
        self._swapped_out = 0  # as read then
        self._used_then = 0
        self._stable_since: float | None = None  # warned, small enough, and nothing is swapped out
        self._available: deque[int] = deque(maxlen=5)
        self._pressures: deque[Pressure] = deque(maxlen=self._marks.spike_readings)

    @property
    def level(self) -> Level:
        return self._level

    @property
    def pressure(self) -> Pressure:
        """The kernel's verdict without its spikes: what all of the last readings agree on."""
        full = len(self._pressures) == self._marks.spike_readings
        return min(self._pressures) if full else Pressure.NORMAL

    @property
    def available_bytes(self) -> int:
        """Reclaimable memory without its jumps: the median of the last readings."""
        return int(median(self._available)) if self._available else 0

    def may_restore(self, now: float) -> bool:
        """Whether what was shrunk may grow again: calm, or under a warning that changes nothing."""
        if self._level is Level.CALM:
            return True
        since = self._stable_since
        return since is not None and now - since >= self._marks.warned_stable_s

    def set_budget(self, budget_bytes: int) -> None:
        self._budget = budget_bytes

    def observe(self, reading: Reading, now: float) -> Decision:
        """One reading, `now` in seconds of a monotonic clock; called about once per second."""
        self._available.append(reading.available_bytes)
        self._pressures.append(reading.pressure)
        before = self._level
        self._level = self._next_level(reading, now)
        self._watch_warning(reading, now)
        if self._level is Level.CALM:
            self._bad = self._warned_steps = 0
            reason = "" if before is Level.CALM else f"memory calm again: {self._share(reading)}"
            return Decision(Level.CALM, (), reason)
        worse = self._wanted(reading) is not Level.CALM
        if not self._only_warned(reading):
            self._bad = self._bad + 1 if worse or self._level > before else 0
        actions = self._actions(reading, now) if worse else ()
        reason = f"memory {self._level.name.lower()}: {self._share(reading)}"
        return Decision(self._level, actions, reason if actions or self._level != before else "")

    def judge(
        self, num_bytes: int, reading: Reading, *, reclaimed: bool = False
    ) -> PressureVerdict:
        """Whether `num_bytes` may be taken on top of what `reading` shows.

        The ledger has said yes already; this holds its prices against the kernel's. After a
        RECLAIM ask again with a fresh reading and `reclaimed=True`.
        """
        if num_bytes > self._budget:
            needed, budget = gigabytes(num_bytes), gigabytes(self._budget)
            return PressureVerdict(
                Answer.REFUSE, (), f"needs {needed}, the budget is {budget}", never=True
            )
        after = reading.footprint_bytes + num_bytes
        # The median forgives a moment without room, the newest reading a moment that has passed.
        available = max(self.available_bytes, reading.available_bytes)
        if after > max(self._budget, self.hard_bytes):
            reason = (
                f"needs {gigabytes(num_bytes)} beside {gigabytes(reading.footprint_bytes)} "
                f"in use, the budget is {gigabytes(self._budget)}"
            )
        elif num_bytes > available and not reading.available_is_advice:
            reason = f"needs {gigabytes(num_bytes)}, the machine has {gigabytes(available)} left"
        elif self.pressure is Pressure.CRITICAL and reading.pressure is Pressure.CRITICAL:
            reason = "the machine is critically short of memory"
        elif self._level is Level.HARD and self._wanted(reading) is Level.HARD:
            reason = f"memory is at its hard limit: {self._share(reading)}"  # whatever its size
        else:
            return PressureVerdict(Answer.ADMIT)
        if reclaimed:
            return PressureVerdict(Answer.REFUSE, (), reason)
        return PressureVerdict(Answer.RECLAIM, (*_SOFT_ACTIONS, Action.EVICT_IDLE), reason)

    def _next_level(self, reading: Reading, now: float) -> Level:
        wanted = self._wanted(reading)
        if wanted > self._level:
            self._quiet_since = None
            self._streak += 1
            if self._streak < self._marks.spike_readings:
                return self._level
            self._streak = 0
            return wanted
        self._streak = 0
        if self._level is Level.CALM or not self._is_quiet(reading):
            self._quiet_since = None
            return self._level
        if self._quiet_since is None:
            self._quiet_since = now
        if now - self._quiet_since < self._marks.quiet_s:
            return self._level
        self._quiet_since = now  # one level at a time, each with its own quiet
        return Level(self._level - 1)

    def _wanted(self, reading: Reading) -> Level:
        used = reading.footprint_bytes
        if used >= self.hard_bytes or reading.pressure is Pressure.CRITICAL:
            return Level.HARD
        if used >= self.soft_bytes or reading.pressure is Pressure.WARN:
            return Level.SOFT
        return Level.CALM

    @property
    def soft_bytes(self) -> int:
        """Where memory begins to be taken back: never below what was granted."""
        granted = self._granted() * self._marks.granted_soft
        return int(max(self._budget * self._marks.soft, granted))

    @property
    def hard_bytes(self) -> int:
        granted = self._granted() * self._marks.granted_hard
        return int(max(self._budget * self._marks.hard, granted))

    def _is_quiet(self, reading: Reading) -> bool:
        """Below the mark at which the present level ends."""
        used, marks = reading.footprint_bytes, self._marks
        if self._level is Level.HARD:
            end = self.hard_bytes * marks.hard_end / marks.hard
            return used < end and reading.pressure < Pressure.CRITICAL
        end = self.soft_bytes * marks.soft_end / marks.soft
        return used < end and reading.pressure is Pressure.NORMAL

    def _watch_warning(self, reading: Reading, now: float) -> None:
        """How long a warning has lasted to which nothing of ours adds."""
        stable = self._level is Level.SOFT and self._only_warned(reading)
        if not stable or self._grows(reading):
            self._stable_since = None
        elif self._stable_since is None:
            self._stable_since = now
        if not self._warned_steps:
            self._swapped_out, self._used_then = reading.swapped_out_bytes, reading.footprint_bytes

    def _grows(self, reading: Reading) -> bool:
        """Since the last step: memory is swapped out, or we hold more than was granted."""
        if reading.swapped_out_bytes > self._swapped_out:
            return True
        before = max(self._used_then, self._granted())
        return reading.footprint_bytes > before * self._marks.warned_growth

    def _only_warned(self, reading: Reading) -> bool:
        return reading.pressure is Pressure.WARN and reading.footprint_bytes < self.soft_bytes

    def _actions(self, reading: Reading, now: float) -> tuple[Action, ...]:
        """One step down the list per bad reading, then from its top again: what was cleared first
        has filled up meanwhile. Everything at once on the hard level."""
        if self._level is Level.HARD:
            return _SOFT_ACTIONS if self._bad <= 1 else (*_SOFT_ACTIONS, Action.EVICT_IDLE)
        if self._only_warned(reading):
            return self._warned_action(reading, now)
        return (_SOFT_ACTIONS[(self._bad - 1) % len(_SOFT_ACTIONS)],) if self._bad else ()

    def _warned_action(self, reading: Reading, now: float) -> tuple[Action, ...]:
        early = now - self._stepped_at < self._marks.warned_step_s
        if self._warned_steps and (early or not self._grows(reading)):
            return ()
        self._stepped_at = now
        self._swapped_out, self._used_then = reading.swapped_out_bytes, reading.footprint_bytes
        step = min(self._warned_steps, len(_WARNED_ACTIONS) - 1)
        self._warned_steps += 1
        return (_WARNED_ACTIONS[step],)

    def _share(self, reading: Reading) -> str:
        return (
            f"{gigabytes(reading.footprint_bytes)} of {gigabytes(self._budget)} in use, "
            f"{gigabytes(reading.available_bytes)} available, "
            f"pressure {reading.pressure.name.lower()}"
        )
