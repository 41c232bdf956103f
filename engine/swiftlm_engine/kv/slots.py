"""`Slot`: the first tokens of one buffer, as a row of a decode step reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from swiftlm_engine.kv.shared_cache import SharedKVCache


@dataclass(frozen=True, slots=True)
class Slot:
    """`length` tokens of arrays (1, H, capacity, D), attended to by row `row`."""

    keys: mx.array
    values: mx.array
    length: int
    row: int

    def arrays(self) -> tuple[mx.array, mx.array]:
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]


class SlotAttention(Protocol):
    """Decode attention over slots of unequal length in one go; the GPU's kernels are one."""

    def fits(self, queries: mx.array, keys: mx.array, values: mx.array) -> bool: ...

    def attend(
        self, queries: mx.array, slots: list[Slot], scale: float, sinks: mx.array | None = None
    ) -> mx.array: ...


def slots_of(rows: Sequence[Any]) -> list[Slot]:
    """Of plain, shared and windowed caches, one per row; in what order a window holds its tokens
    makes no difference."""
    slots = []
    for row, cache in enumerate(rows):
        if isinstance(cache, SharedKVCache):
            slots += slots_up_to(cache, cache.offset, row)
        else:
            length = min(cache.offset, cache.keys.shape[2])
            slots.append(Slot(cache.keys, cache.values, length, row))
    return slots


def slots_up_to(cache: SharedKVCache, length: int, row: int) -> list[Slot]:
    """Of the first `length` tokens."""
    slots = []
    for hold in cache.table.holds:
        buffer, count = hold.extent.buffer, min(length, hold.length)
        assert buffer.keys is not None
        assert buffer.values is not None
        if count > 0:
            slots.append(Slot(buffer.keys, buffer.values, count, row))
        length -= count
    return slots
