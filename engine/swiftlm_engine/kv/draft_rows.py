"""`DraftRows`: the tokens of checked drafts as rows of a decode step over one or more sequences.

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
    """The keys, or the values, of sequences whose newest tokens are the rows."""

    def __init__(self, caches: list[SharedKVCache], counts: list[int]) -> None:
        self.rows = caches
        self._counts = counts

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
        """(B, Hq, 1, d) -> the same; a row sees its sequence up to its own token. Lazy."""
        seen = [
            (cache, cache.offset - count + 1 + row)
            for cache, count in zip(self.rows, self._counts, strict=True)
            for row in range(count)
        ]
        if kernels is not None:
            slots = [s for row, (cache, n) in enumerate(seen) for s in slots_up_to(cache, n, row)]
            if kernels.fits(queries, slots[0].keys, slots[0].values):
                return kernels.attend(queries, slots, scale, sinks)
        extra = {} if sinks is None else {"sinks": sinks}
        arrays = {id(cache): cache.keys_and_values() for cache in self.rows}
        outs = []
        for row, (cache, length) in enumerate(seen):
            one = Slot(*arrays[id(cache)], length, row).arrays()
            query = queries[row : row + 1]
            outs.append(attention(query, *one, None, mask=None, scale=scale, **extra))
        return mx.concatenate(outs)


class DraftRows:
    """Stands in for the caches of a layer during one pass of `counts` rows of each; they keep their
    tokens."""

    def __init__(self, caches: list[SharedKVCache], counts: list[int]) -> None:
        self.caches = caches
        self._counts = counts
        pairs = zip(caches, counts, strict=True)
        offsets = [cache.offset + row for cache, count in pairs for row in range(count)]
        self.offset = mx.array(offsets, dtype=mx.int32)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[DraftArrays, DraftArrays]:
        """Take in (B, H, 1, d)."""
        start = 0
        for cache, count in zip(self.caches, self._counts, strict=True):
            end = start + count
            one = (rows[start:end].transpose(2, 1, 0, 3) for rows in (keys, values))
            cache.append(*one)
            start = end
        arrays = DraftArrays(self.caches, self._counts)
        return arrays, DraftArrays(self.caches, self._counts)

    def make_mask(self, N: int, **options: Any) -> None:
        return None


def draft_rows(caches: list[Any], count: int) -> list[Any] | None:
    """None where some cache is of another kind."""
    if not all(isinstance(cache, SharedKVCache) for cache in caches):
        return None
    return [DraftRows([cache], [count]) for cache in caches]
