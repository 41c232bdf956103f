"""`DraftRows`: the tokens of one checked draft as rows of a decode step over one sequence.

A pass over several tokens of a sequence sums in another order than steps of one token do. Here
each token is a row of its own, which sees the sequence up to itself: what holds of a draft then has
the bits that it would have had without one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from swiftlm_engine.kv.shared_cache import SharedKVCache
from swiftlm_engine.kv.slots import Slot, SlotAttention, slots_up_to


class DraftArrays:
    """The keys, or the values, of a sequence whose newest tokens are the rows."""

    def __init__(self, cache: SharedKVCache) -> None:
        self.rows = [cache]

    def attend_rows(
        self,
        attention: Callable[..., mx.array],
        queries: mx.array,
        values: DraftArrays,
        mask: None,
        *,
        scale: float,
        sinks: mx.array | None = None,
        kernels: SlotAttention | None = None,
    ) -> mx.array:
        """(B, Hq, 1, d) -> the same; row i sees all but the newest B - 1 - i tokens. Lazy."""
        [cache] = self.rows
        count = queries.shape[0]
        lengths = [cache.offset - count + 1 + row for row in range(count)]
        if kernels is not None:
            slots = [s for row, n in enumerate(lengths) for s in slots_up_to(cache, n, row)]
            if kernels.fits(queries, slots[0].keys, slots[0].values):
                return kernels.attend(queries, slots, scale, sinks)
        extra = {} if sinks is None else {"sinks": sinks}
        keys, held = cache.keys_and_values()
        outs = []
        for row, length in enumerate(lengths):
            one = Slot(keys, held, length, row).arrays()
            query = queries[row : row + 1]
            outs.append(attention(query, *one, None, mask=None, scale=scale, **extra))
        return mx.concatenate(outs)


class DraftRows:
    """Stands in for `cache` during one pass of `count` rows; the cache keeps their tokens."""

    def __init__(self, cache: SharedKVCache, count: int) -> None:
        self.cache = cache
        self.offset = mx.array([cache.offset + row for row in range(count)], dtype=mx.int32)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[DraftArrays, DraftArrays]:
        """Take in (B, H, 1, d)."""
        self.cache.append(keys.transpose(2, 1, 0, 3), values.transpose(2, 1, 0, 3))
        return DraftArrays(self.cache), DraftArrays(self.cache)

    def make_mask(self, N: int, **options: Any) -> None:
        return None


def draft_rows(caches: list[Any], count: int) -> list[Any] | None:
    """None where some cache is of another kind."""
    if not all(isinstance(cache, SharedKVCache) for cache in caches):
        return None
    return [DraftRows(cache, count) for cache in caches]
