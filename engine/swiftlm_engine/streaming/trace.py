"""Which experts each call of each layer wanted: recorded live, replayed without a model."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from swiftlm_engine.streaming.slots import PolicyKind, SlotMap, make_policy

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    layer: str
    experts: tuple[int, ...]  # distinct, most wanted first


@dataclass(slots=True)
class Trace:
    """Calls of `layers` (None = all), up to `max_calls`; later ones are not recorded."""

    calls: list[Call] = field(default_factory=list)
    layers: frozenset[str] | None = None
    max_calls: int = 1 << 20

    @property
    def full(self) -> bool:
        return len(self.calls) >= self.max_calls

    def add(self, layer: str, experts: tuple[int, ...]) -> None:
        if not self.full and (self.layers is None or layer in self.layers):
            self.calls.append(Call(layer, experts))

    def save(self, path: Path) -> None:
        lines = (json.dumps([call.layer, *call.experts]) for call in self.calls)
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Trace:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return cls([Call(layer, tuple(experts)) for layer, *experts in rows])


@dataclass(frozen=True, slots=True)
class Replayed:
    hits: int
    misses: int

    @property
    def hit_rate(self) -> float:
        total = self.hits + self.misses
        return self.hits / total if total else 0.0


def replay(
    trace: Trace, num_slots: int, policy: PolicyKind, *, count_from: float = 0.0
) -> Replayed:
    """What slots of that number and policy would have done with these calls.

    Counts after the first `count_from` of the calls, which only fill the slots.
    """
    return drain(replaying(trace, num_slots, policy, count_from=count_from))


def replaying(
    trace: Trace, num_slots: int, policy: PolicyKind, *, count_from: float = 0.0
) -> Generator[None, None, Replayed]:
    """`replay`, a call at a time."""
    maps: dict[str, SlotMap] = {}
    hits = misses = 0
    first = int(len(trace.calls) * count_from)
    for number, call in enumerate(trace.calls):
        if call.layer not in maps:
            maps[call.layer] = SlotMap(num_slots, make_policy(policy, num_slots))
        slots = maps[call.layer]
        seated, swept = seat(slots, call.experts)
        plan = slots.plan(seated)
        slots.commit(plan)
        if number >= first:
            hits += len(plan.hits)
            misses += len(plan.installs) + len(swept)
        yield
    return Replayed(hits, misses)


def drain(turns: Generator[None, None, T]) -> T:
    """What a generator comes to."""
    while True:
        try:
            next(turns)
        except StopIteration as end:
            result: T = end.value
            return result


def seat(slots: SlotMap, experts: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Those that use slots in this call, and those that do not fit and pass through.

    What is in a slot is used from there, so that a call reads each expert at most once; the most
    wanted of the others take the slots that the call leaves.
    """
    if len(experts) <= slots.num_slots:
        return experts, ()
    inside = tuple(e for e in experts if e in slots)
    outside = tuple(e for e in experts if e not in slots)
    room = slots.num_slots - len(inside)
    return inside + outside[:room], outside[room:]
