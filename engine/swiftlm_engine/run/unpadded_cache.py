"""`UnpaddedCache`: the exact KV of rows that decode together, each row in a cache of its own.

mlx-lm's `BatchKVCache` pads every row to the longest one, and a join copies all of them: one
prompt of 8,000 tokens beside fifteen of three held eleven times what was priced. Here a row takes
what it holds, joining and leaving copy nothing, and attention is computed row by row without
padding. Linear layers still see all rows at once.

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

Attention = Callable[..., mx.array]


class RowArrays:
    """Keys or values of all rows, (1, H, N, d) each with an N of its own, or in several parts."""

    def __init__(self, arrays: list[mx.array | KVParts]) -> None:
        self.arrays = arrays

    def attend_rows(
        self,
        attention: Attention,
        queries: mx.array,
        values: RowArrays,
        mask: RowMasks | None,
        **options: Any,
    ) -> mx.array:
        """(B, Hq, 1, d) queries over these keys -> the same shape, a row at a time. Lazy."""
        masks = mask.masks if mask is not None else [None] * len(self.arrays)
        rows = zip(_split(queries), self.arrays, values.arrays, masks, strict=True)
        outs = [
            k.attend_rows(attention, q, v, m, **options)
            if isinstance(k, KVParts)
            else attention(q, k, v, None, mask=m, **options)
            for q, k, v, m in rows
        ]
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
        if isinstance(self.rows[0], SharedKVCache):
            # Written first: a view of a buffer that is still to be written would cost a copy.
            for row, k, v in new:
                row.append(k, v)
            held = [row.fetch() for row in self.rows]
        else:
            held = [row.update_and_fetch(k, v) for row, k, v in new]
        return RowArrays([k for k, _ in held]), RowArrays([v for _, v in held])

    def make_mask(self, N: int, **options: Any) -> RowMasks | None:
        masks = [row.make_mask(N, **options) for row in self.rows]
        return None if all(mask is None for mask in masks) else RowMasks(masks)

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
