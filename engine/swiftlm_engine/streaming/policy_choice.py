"""Which slot policy hits most for a model, found by replaying what its routers really asked for.

The routers are watched while the model serves; once enough was seen, an idle moment replays it
with every policy, and the verdict is kept for the next load. Half of the trace fills the slots,
the other half is counted.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from swiftlm_engine.streaming.report import StreamingReport, StreamMode
from swiftlm_engine.streaming.slots import PolicyKind
from swiftlm_engine.streaming.streamer import Streamer
from swiftlm_engine.streaming.trace import Trace, replay

log = logging.getLogger(__name__)


class StreamWatcher:
    """Says once that counters contradict each other, and learns the slot policy. The engine
    thread's."""

    def __init__(self, report: StreamingReport, policy_path: Path | None) -> None:
        self._streamer = report.streamer
        self._seen: list[str] = []
        self._learner = None
        if policy_path is not None and report.mode is StreamMode.EXPERTS and self._streamer.slotted:
            self._learner = PolicyLearner(self._streamer, policy_path)

    def idle(self) -> None:
        self._streamer.settle()
        problems = self._streamer.counters.problems()
        if problems and problems != self._seen:
            log.error("streaming counters contradict each other: %s", "; ".join(problems))
        self._seen = problems
        if self._learner is not None:
            self._learner.idle()


log = logging.getLogger(__name__)

MAX_CALLS = 8192  # replayed three times in about half a second
MAX_LAYERS = 8  # of those watched: more tokens say more than more layers
LEAST_GAIN = 0.01  # of hit rate; below it the choice is noise and the default stays
DEFAULT = PolicyKind.LRU


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    policy: PolicyKind
    slots: int
    hit_rates: dict[str, float]  # by policy

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        record = {"policy": self.policy, "slots": self.slots, "hit_rates": self.hit_rates}
        temporary.write_text(json.dumps(record), encoding="utf-8")
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> PolicyChoice | None:
        """None where there is none that can be read: the default will do."""
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            return cls(PolicyKind(record["policy"]), record["slots"], record["hit_rates"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


def choose_policy(trace: Trace, num_slots: int) -> PolicyChoice:
    rates = {kind: replay(trace, num_slots, kind, count_from=0.5).hit_rate for kind in PolicyKind}
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

    def __init__(self, streamer: Streamer, path: Path) -> None:
        self._streamer = streamer
        self._path = path
        paths = list(streamer.counters.layers)
        watched = paths[:: -(-len(paths) // MAX_LAYERS)]
        self._trace = streamer.trace = Trace(layers=frozenset(watched), max_calls=MAX_CALLS)

    def idle(self) -> None:
        """Decides once, when the trace is full."""
        if self._streamer.trace is not self._trace or not self._trace.full:
            return
        self._streamer.trace = None
        choice = choose_policy(self._trace, self._streamer.slots)
        log.info("slot policy from the next load on: %s", choice)
        choice.save(self._path)
