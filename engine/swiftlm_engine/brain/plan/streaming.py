"""How many experts stay in memory when the others are read from disk as they are needed.

Slots up to half of the experts first (there the hit curve bends), then whole layers, which need no
read-back of the router's choice. Calibration replaces the hit curve by the model's own.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from swiftlm_engine.brain.facts import ModelFacts
from swiftlm_engine.brain.plan.machine import GB, MachineLimits

MIN_SLOTS = 8
_GROUP = 8  # experts in each of the two banks that prefill reads ahead into

# Share of experts held -> share of hits in decode. Low: five short answers on five subjects right
# after a load of the trained mixture that the tests use (docs/streaming.md); high: the best of
# three published families in a long answer on one subject.
_HITS_LOW = ((0.0, 0.0), (0.05, 0.18), (0.12, 0.32), (0.25, 0.41), (0.36, 0.60), (0.5, 0.75),
             (0.75, 0.87), (1.0, 1.0))  # fmt: skip
_HITS_HIGH = ((0.0, 0.0), (0.05, 0.41), (0.12, 0.58), (0.25, 0.80), (0.36, 0.89), (0.5, 0.94),
              (0.75, 0.98), (1.0, 1.0))  # fmt: skip
# What a warm page cache leaves to the disk: a copy in memory runs several times its speed.
_PAGE_CACHE_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Streaming:
    """The residency of experts: `slots` in each streamed layer, all of them in the others."""

    slots: int
    num_experts: int
    resident_layers: int
    streamed_layers: int
    record_bytes: int  # on disk: what one miss reads
    largest_bank_bytes: int  # of the slots of one layer
    slot_bytes: int
    bank_bytes: int
    page_cache_bytes: int
    hit_low: float
    hit_high: float
    miss_bytes_low: float
    miss_bytes_high: float
    sweep_bytes: int  # what one prefill chunk reads: every expert that is not in memory, once

    @property
    def past_the_knee(self) -> bool:
        """More slots would gain little: whole layers or other uses are worth more."""
        return self.slots >= knee(self.num_experts)


def least_slots(facts: ModelFacts) -> int:
    """Fewer would make one token evict its own experts."""
    weights = facts.weights
    return min(weights.num_experts, max(MIN_SLOTS, weights.experts_per_token))


def knee(num_experts: int) -> int:
    """Where the hit curve bends, until a trace of the model says otherwise."""
    return -(-num_experts // 2)


def page_cache_reserve(facts: ModelFacts, machine: MachineLimits) -> int:
    """What the operating system keeps to serve repeated reads."""
    experts = sum(expert.amount.bytes_as() for expert in facts.weights.experts)
    return min(max(2 * GB, experts // 10), machine.ram_bytes // 4, experts)


def place_experts(
    facts: ModelFacts,
    room_bytes: int,
    page_cache_bytes: int,
    slots: int | None = None,
    *,
    top_k: int | None = None,
    itemsize: int | None = None,
    must_stream: bool = False,
) -> Streaming:
    """Spend `room_bytes` on slots and whole layers; at least the least slots, even if over.

    `must_stream`: where all of the experts would fit, half of them stay on disk all the same. With
    `slots` given there are that many in every layer and no whole layers. `itemsize` is that of
    floats which are cast while they are read: in memory a record is then not what it is on disk.
    """
    weights = facts.weights
    count = weights.num_experts
    on_disk = [expert.record_bytes(count) for expert in weights.experts]
    records = [expert.record_bytes(count, itemsize) for expert in weights.experts]
    per_slot = sum(records)
    if must_stream and slots is None and room_bytes >= count * per_slot:
        slots = max(weights.experts_per_token, knee(count))
    wanted = slots or max(least_slots(facts), min(room_bytes // per_slot, knee(count)))
    wanted = min(count, wanted)
    completing = [(count - wanted) * record for record in records]
    resident = _num_paid(completing, room_bytes - wanted * per_slot) if slots is None else 0
    streamed = len(records) - resident if wanted < count else 0
    low, high = _hits(_HITS_LOW, wanted / count), _hits(_HITS_HIGH, wanted / count)
    per_token = min(top_k or weights.experts_per_token, weights.experts_per_token)
    read = per_token * sum(on_disk[resident:]) if streamed else 0
    return Streaming(
        slots=wanted,
        num_experts=count,
        resident_layers=len(records) - streamed,
        streamed_layers=streamed,
        record_bytes=max(on_disk),
        largest_bank_bytes=wanted * max(records),
        slot_bytes=wanted * per_slot + sum(completing[:resident]),
        bank_bytes=2 * min(_GROUP, count) * max(records),
        page_cache_bytes=page_cache_bytes,
        hit_low=low,
        hit_high=high,
        miss_bytes_low=read * (1 - low),
        miss_bytes_high=read * (1 - high) * _PAGE_CACHE_SHARE,
        sweep_bytes=(count - wanted) * sum(on_disk[resident:]) if streamed else 0,
    )


def _num_paid(prices: list[int], room_bytes: int) -> int:
    """How many from the first on fit into the room."""
    return sum(total <= room_bytes for total in itertools.accumulate(prices))


def _hits(curve: tuple[tuple[float, float], ...], share: float) -> float:
    for (x0, y0), (x1, y1) in itertools.pairwise(curve):
        if share <= x1:
            return y0 + (y1 - y0) * (share - x0) / (x1 - x0)
    return 1.0
