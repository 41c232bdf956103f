"""Which slot policy hits most for a model, found by replaying what its routers really asked for.

The routers are watched while the model serves; once enough was seen, idle moments replay it with
every policy, a slice at a time, since whoever asks meanwhile waits for the slice. The verdict is
kept for the next load. Half of the trace fills the slots, the other half is counted.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from swiftlm_engine.streaming.record import write_record
from swiftlm_engine.streaming.report import StreamingReport, StreamMode
from swiftlm_engine.streaming.slots import PolicyKind
from swiftlm_engine.streaming.streamer import Streamer
from swiftlm_engine.streaming.trace import Trace, drain, replaying
from swiftlm_engine.streaming.warm_start import SlotKeeper

log = logging.getLogger(__name__)


class StreamWatcher:
    """Says once that counters contradict each other, and learns the slot policy. The engine
    thread's."""

    def __init__(
        self,
        report: StreamingReport,
        policy_path: Path | None,
        slots_path: Path | None = None,
    ) -> None:
        self._streamer = report.streamer
        self._seen: list[str] = []
        self._learner = None
        if policy_path is not None and report.mode is StreamMode.EXPERTS and self._streamer.slotted:
            self._learner = PolicyLearner(self._streamer, policy_path)
        self._keeper = None
        if slots_path is not None and report.mode is StreamMode.EXPERTS and self._streamer.slotted:
            self._keeper = SlotKeeper(self._streamer.slotted, slots_path)

    def idle(self) -> bool:
        """True while it wants to be called again soon."""
        self._streamer.settle()
        problems = self._streamer.counters.problems()
        if problems and problems != self._seen:
            log.error("streaming counters contradict each other: %s", "; ".join(problems))
        self._seen = problems
        if self._keeper is not None:
            self._keeper.idle()
        return self._learner is not None and self._learner.idle()


MAX_CALLS = 8192
SLICE_S = 0.02  # of replaying, before whoever asked meanwhile is served
MAX_LAYERS = 8  # of those watched: more tokens say more than more layers
LEAST_GAIN = 0.01  # of hit rate; below it the choice is noise and the default stays
DEFAULT = PolicyKind.LRU


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    policy: PolicyKind
    slots: int
    hit_rates: dict[str, float]  # by policy

    def save(self, path: Path) -> None:
        """Raises OSError."""
        record = {"policy": self.policy, "slots": self.slots, "hit_rates": self.hit_rates}
        write_record(path, record)

    @classmethod
    def load(cls, path: Path) -> PolicyChoice | None:
        """None where there is none that can be read: the default will do."""
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                PolicyKind(record["policy"]), int(record["slots"]), dict(record["hit_rates"])
            )
        except (OSError, ArithmeticError, ValueError, KeyError, TypeError):
            return None


def choose_policy(trace: Trace, num_slots: int) -> PolicyChoice:
    return drain(choosing(trace, num_slots))


def choosing(trace: Trace, num_slots: int) -> Generator[None, None, PolicyChoice]:
    """`choose_policy`, a call of the trace at a time."""
    rates = {}
    for kind in PolicyKind:
        replayed = yield from replaying(trace, num_slots, kind, count_from=0.5)
        rates[kind] = replayed.hit_rate
    best = max(rates, key=lambda kind: rates[kind])
    if rates[best] < rates[DEFAULT] + LEAST_GAIN:
        best = DEFAULT
    return PolicyChoice(best, num_slots, {str(kind): round(r, 4) for kind, r in rates.items()})


def kept_policy(path: Path | None, num_slots: int) -> PolicyKind:
    """What an earlier load found, if its slots were about as many; the curves cross."""
    choice = PolicyChoice.load(path) if path is not None else None
    if choice is None or abs(choice.slots - num_slots) > choice.slots // 4:
        return DEFAULT
    return choice.policy


class PolicyLearner:
    """Watches one loaded model. The engine thread's."""

    def __init__(
        self, streamer: Streamer, path: Path, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._streamer = streamer
        self._path = path
        self._clock = clock
        paths = list(streamer.counters.layers)
        watched = paths[:: -(-len(paths) // MAX_LAYERS)]
        self._trace = streamer.trace = Trace(layers=frozenset(watched), max_calls=MAX_CALLS)
        self._turns: Generator[None, None, PolicyChoice] | None = None

    def idle(self) -> bool:
        """Decides once, when the trace is full; True while it wants to go on soon."""
        if self._turns is None:
            if self._streamer.trace is not self._trace or not self._trace.full:
                return False
            self._streamer.trace = None
            self._turns = choosing(self._trace, self._streamer.slots)
        until = self._clock() + SLICE_S
        try:
            while self._clock() < until:
                next(self._turns)
        except StopIteration as end:
            self._keep(end.value)
            return False
        return True

    def _keep(self, choice: PolicyChoice) -> None:
        self._turns = None
        log.info("slot policy from the next load on: %s", choice)
        try:
            choice.save(self._path)
        except OSError as error:
            log.warning("the slot policy will be learnt again: %s", error)
