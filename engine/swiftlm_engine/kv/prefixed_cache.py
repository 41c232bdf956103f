"""`PrefixedCache`: rows that decode together and begin with the same tokens.

Their common tokens are in one buffer, which the prefix cache may hold, too; what follows is in a
batch of its own, padded or not. A step reads the common keys and values once for all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from swiftlm_engine.brain.kv_extents import Extent
from swiftlm_engine.kv.parts_attention import attend_prefixed, attend_prefixed_rows
from swiftlm_engine.kv.shared_cache import TAIL_STEP_TOKENS, KVBuffer, SharedKVCache

# Fewer common tokens are as cheap to read for each row.
MIN_COMMON_TOKENS = 64


class PrefixedArrays:
    """Keys or values of all rows: what they have in common, (1, H, P, d), and their tails."""

    def __init__(self, common: mx.array, tails: Any) -> None:
        self.common, self.tails = common, tails

    def attend_rows(
        self,
        attention: Callable[..., mx.array],
        queries: mx.array,
        values: PrefixedArrays,
        mask: TailMask | None,
        *,
        scale: float,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """(B, Hq, 1, d) -> (B, Hq, 1, dv). Lazy."""
        common = self.common, values.common
        if isinstance(self.tails, mx.array):
            padding = None if mask is None else mask.mask
            tails = self.tails, values.tails
            return attend_prefixed(queries, common, tails, padding, scale, sinks)
        rows = [tail.keys_and_values() for tail in self.tails.rows]
        return attend_prefixed_rows(queries, common, rows, scale, sinks)


class TailMask:
    """Which tokens of the padded tails are there; the common ones always are."""

    def __init__(self, mask: mx.array | None) -> None:
        self.mask = mask


class PrefixedCache:
    """Owns `tails`, a batch cache of what follows the first `length` tokens of each row."""

    def __init__(self, first: SharedKVCache, length: int, tails: Any) -> None:
        self.common = first.fork(length)
        self.tails = tails
        self.tails.step = TAIL_STEP_TOKENS

    @property
    def length(self) -> int:
        return self.common.offset

    @property
    def offset(self) -> mx.array:
        return self.tails.offset + self.length  # (B,)

    def update_and_fetch(
        self, keys: mx.array, values: mx.array
    ) -> tuple[PrefixedArrays, PrefixedArrays]:
        """Take in (B, H, 1, d)."""
        if keys.shape[2] != 1:
            raise ValueError("rows with a common prefix take one token at a time")
        own_keys, own_values = self.tails.update_and_fetch(keys, values)
        common_keys, common_values = self.common.keys_and_values()
        return PrefixedArrays(common_keys, own_keys), PrefixedArrays(common_values, own_values)

    def make_mask(self, N: int, **options: Any) -> TailMask | None:
        mask = self.tails.make_mask(N, **options)
        return TailMask(mask) if isinstance(mask, mx.array) else None

    def extend(self, other: PrefixedCache) -> None:
        self.tails.extend(other.tails)

    def filter(self, batch_indices: mx.array) -> None:
        self.tails.filter(batch_indices)

    def extract(self, idx: int) -> SharedKVCache:
        row = self.common.fork()
        tail = KVCache() if self.tails.empty() else self.tails.extract(idx)
        if not tail.empty() and tail.offset:
            row.adopt(tail.keys, tail.values, tail.offset)
        return row

    def size(self) -> int:
        return self.length + int(self.tails.size())

    def empty(self) -> bool:
        return False

    def extents(self) -> list[Extent[KVBuffer]]:
        return self.common.extents()

    @property
    def own_nbytes(self) -> int:
        return int(self.tails.nbytes)

    @property
    def nbytes(self) -> int:
        return self.common.nbytes + self.own_nbytes

    @property
    def state(self) -> list[Any]:
        return [self.common.state, *([] if self.tails.empty() else [self.tails.state])]


def common_tokens(rows: Sequence[Any]) -> int:
    """Of one layer: how many first tokens its rows hold in one and the same buffer."""
    if not all(isinstance(row, SharedKVCache) and not row.empty() for row in rows):
        return 0
    firsts = [row.table.holds[0] for row in rows]
    if any(hold.extent is not firsts[0].extent for hold in firsts):
        return 0
    length = min(hold.length for hold in firsts)
    return length if length >= MIN_COMMON_TOKENS else 0
