"""`UnpaddedCache`: the exact KV of rows that decode together, each row in a cache of its own.

mlx-lm's `BatchKVCache` pads every row to the longest one, and a join copies all of them: one
prompt of 8,000 tokens beside fifteen of three held eleven times what was priced. Here a row takes
what it holds, joining and leaving copy nothing, and attention is computed without padding: on a GPU
by one kernel over all rows, else row by row. Linear layers still see all rows at once.

A model gets `RowArrays` where it expects keys and values. All it may do with them is to hand them
to its attention, which `turboquant.routing` sends to `attend_rows`; layers that share KV may do so,
too. A model that does anything else (latent attention, say) raises, and `RowCaches` finds that out
on a trial before its first step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache

from swiftlm_engine.brain.kv_extents import Extent
from swiftlm_engine.kv.parts_attention import KVParts
from swiftlm_engine.kv.shared_cache import KVBuffer, SharedKVCache, extents_of, held_nbytes
from swiftlm_engine.kv.slots import SlotAttention, slots_of

Attention = Callable[..., mx.array]


class RowArrays:
    """The keys, or the values, of all rows; where they are is asked when attention wants them."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def attend_rows(
        self,
        attention: Attention,
        queries: mx.array,
        values: RowArrays,
        mask: RowMasks | None,
        *,
        scale: float,
        sinks: mx.array | None = None,
        kernels: SlotAttention | None = None,
    ) -> mx.array:
        """(B, Hq, 1, d) queries over these keys -> the same shape. Lazy. In one go by `kernels`
        where there are some, else row by row."""
        if kernels is not None and mask is None:
            slots = slots_of(self.rows)
            if kernels.fits(queries, slots[0].keys, slots[0].values):
                return kernels.attend(queries, slots, scale, sinks)
        if kernels is not None:  # a GPU's own attention wants one array
            for row in self.rows:
                if isinstance(row, SharedKVCache):
                    row.gather()
        return self._one_by_one(attention, queries, mask, scale, sinks)

    def _one_by_one(
        self,
        attention: Attention,
        queries: mx.array,
        mask: RowMasks | None,
        scale: float,
        sinks: mx.array | None,
    ) -> mx.array:
        extra = {} if sinks is None else {"sinks": sinks}
        masks = mask.masks if mask is not None else [None] * len(self.rows)
        outs = []
        for q, row, m in zip(_split(queries), self.rows, masks, strict=True):
            k, v = row.fetch() if isinstance(row, SharedKVCache) else row.keys_and_values()
            if isinstance(k, KVParts):
                outs.append(k.attend_rows(attention, q, v, m, scale=scale, **extra))
            else:
                outs.append(attention(q, k, v, None, mask=m, scale=scale, **extra))
        return mx.concatenate(outs)  # (B, Hq, 1, d)


class RowMasks:
    """One mask per row, or None where a row needs none."""

    def __init__(self, masks: list[mx.array | None]) -> None:
        self.masks = masks


class UnpaddedCache:
    """Owns its rows. One new token per row and step; prefill has its own caches."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self._take(list(rows))

    def _take(self, rows: list[Any]) -> None:
        self.rows = rows
        self.offset = mx.array([row.offset for row in rows], dtype=mx.int32)  # (B,)

    @staticmethod
    def holds(kind: type) -> bool:
        return kind in (KVCache, RotatingKVCache, SharedKVCache)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[RowArrays, RowArrays]:
        """Take in (B, H, 1, d)."""
        if keys.shape[2] != 1:
            raise ValueError("rows without padding take one token at a time")
        self.offset = self.offset + 1
        new = zip(self.rows, _split(keys), _split(values), strict=True)
        # All are written before any is read: a view of a buffer that is still to be written would
        # cost a copy.
        for row, k, v in new:
            if isinstance(row, SharedKVCache):
                row.append(k, v)
            else:
                row.update_and_fetch(k, v)
        return RowArrays(self.rows), RowArrays(self.rows)

    def make_mask(self, N: int, **options: Any) -> RowMasks | None:
        masks = [row.make_mask(N, **options) for row in self.rows]
        return None if all(mask is None for mask in masks) else RowMasks(masks)

    def take_back(self, counts: Sequence[int]) -> None:
        """So many of each row's newest tokens, which drafts have added to the rows themselves."""
        for row, count in zip(self.rows, counts, strict=True):
            row.trim(count)
        self._take(self.rows)

    def extend(self, other: UnpaddedCache) -> None:
        self._take([*self.rows, *other.rows])

    def filter(self, batch_indices: mx.array) -> None:
        self._take([self.rows[i] for i in batch_indices.tolist()])

    def extract(self, idx: int) -> Any:
        """The row's own cache; whoever takes it also takes the row out."""
        return self.rows[idx]

    def size(self) -> int:
        return max((row.size() for row in self.rows), default=0)

    def empty(self) -> bool:
        return all(row.empty() for row in self.rows)

    def extents(self) -> list[Extent[KVBuffer]]:
        return extents_of(self.rows)

    @property
    def own_nbytes(self) -> int:
        return sum(row.nbytes for row in self.rows if not isinstance(row, SharedKVCache))

    @property
    def nbytes(self) -> int:
        return held_nbytes(self.rows)

    @property
    def state(self) -> list[Any]:
        return [row.state for row in self.rows if not row.empty()]


def _split(rows: mx.array) -> list[mx.array]:
    """(B, ...) -> B arrays (1, ...)."""
    return mx.split(rows, rows.shape[0]) if rows.shape[0] > 1 else [rows]
