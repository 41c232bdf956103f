"""`TurboBatchKVCache`: sequences of unequal length in one layer, behind mlx-lm's batch protocol.

Every row is a `TurboKVCache` of its own, so no row pays for the length of another and rows move
between batches without a copy. Offsets, left padding and masks are kept as mlx-lm's `BatchKVCache`
keeps them, because models build one mask for all layers from whichever cache comes first.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask

from swiftlm_engine.turboquant.cache import TurboKVCache, WindowNotSupported


class TurboBatchKVCache:
    def __init__(self, rows: Sequence[TurboKVCache]) -> None:
        """Owns `rows` from now on."""
        self._take(list(rows))

    def _take(self, rows: list[TurboKVCache]) -> None:
        self.rows = rows
        self._remaining: list[int] | None = None  # valid tokens still to come, right-padded prompt
        self._skip = [0] * len(rows)  # left-padding tokens still to come
        self._spans: list[tuple[int, int]] = []
        self._align()

    def _align(self) -> None:
        lengths = [row.offset for row in self.rows]
        self._idx = max(lengths, default=0)
        self.left_padding = mx.array([self._idx - n for n in lengths], dtype=mx.int32)
        self.offset = mx.array(lengths, dtype=mx.int32)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Take in (B, H, T, d); padding is dropped here. Returns the new tokens only."""
        count = keys.shape[2]
        self._spans = [self._span(i, count) for i in range(len(self.rows))]
        for i, (row, (start, stop)) in enumerate(zip(self.rows, self._spans, strict=True)):
            if start < stop:
                one = slice(i, i + 1), slice(None), slice(start, stop)
                row.update_and_fetch(keys[one], values[one])
        self.offset = self.offset + count
        self._idx += count
        return keys, values

    def _span(self, i: int, count: int) -> tuple[int, int]:
        start = min(count, self._skip[i])
        self._skip[i] -= start
        if self._remaining is None:
            return start, count
        stop = min(count, self._remaining[i])
        self._remaining[i] -= stop
        return start, stop

    def attend(self, queries: mx.array, scale: float) -> mx.array:
        """(B, Hq, T, d) -> the same shape; padding rows give zeros. Lazy."""
        outs = []
        for i, (row, (start, stop)) in enumerate(zip(self.rows, self._spans, strict=True)):
            asked = queries[i : i + 1]
            if start < stop:
                out = row.attend(asked[:, :, start:stop], scale)
                padding = [(0, 0), (0, 0), (start, asked.shape[2] - stop), (0, 0)]
                outs.append(out if stop - start == asked.shape[2] else mx.pad(out, padding))
            else:
                outs.append(mx.zeros_like(asked))
        return mx.concatenate(outs, axis=0)

    def prepare(
        self,
        *,
        left_padding: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
        right_padding: Sequence[int] | None = None,
    ) -> None:
        if left_padding is not None:
            if self._idx:
                raise ValueError("left padding can only be added to an empty cache")
            self._skip = [a + b for a, b in zip(self._skip, left_padding, strict=True)]
            self.left_padding = self.left_padding + mx.array(left_padding, dtype=mx.int32)
            self.offset = self.offset - mx.array(left_padding, dtype=mx.int32)
        if right_padding is not None and max(right_padding) > 0:
            if lengths is None:
                raise ValueError("right padding needs the lengths")
            self._remaining = list(lengths)

    def finalize(self) -> None:
        """The right-padded prompt is over: rows become right-aligned again."""
        if self._remaining is not None:
            self._remaining = None
            self._align()

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array:
        if window_size is not None and self._idx + N > window_size:
            raise WindowNotSupported("a sliding-window layer must keep its own cache")
        return create_causal_mask(N, offset=self._idx, left_padding=self.left_padding)

    def filter(self, batch_indices: Sequence[int] | mx.array) -> None:
        if isinstance(batch_indices, mx.array):
            batch_indices = batch_indices.tolist()
        self._take([self.rows[i] for i in batch_indices])

    def extend(self, other: "TurboBatchKVCache") -> None:
        self._take(self.rows + [row.fork() for row in other.rows])

    def extract(self, idx: int) -> TurboKVCache:
        return self.rows[idx].fork()

    @classmethod
    def merge(cls, caches: Sequence[TurboKVCache]) -> "TurboBatchKVCache":
        return cls([cache.fork() for cache in caches])

    def size(self) -> int:
        return self._idx

    def empty(self) -> bool:
        return all(row.empty() for row in self.rows)

    def is_trimmable(self) -> bool:
        return True

    def trim(self, count: int) -> int:
        """Forget the newest `count` tokens of every row."""
        count = min(self._idx, count)
        for row in self.rows:
            row.trim(count)
        self._align()
        return count

    @property
    def num_compressed(self) -> int:
        return sum(row.num_compressed for row in self.rows)

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in self.rows)

    @property
    def state(self) -> list[Any]:
        return [row.state for row in self.rows]

    @state.setter
    def state(self, state: list[Any]) -> None:
        self._take([TurboKVCache.from_state(one) for one in state])

    @classmethod
    def from_state(cls, state: list[Any]) -> "TurboBatchKVCache":
        return cls([TurboKVCache.from_state(one) for one in state])

    def __deepcopy__(self, memo: dict[int, Any]) -> "TurboBatchKVCache":
        return TurboBatchKVCache([row.fork() for row in self.rows])
