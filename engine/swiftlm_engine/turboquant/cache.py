"""`TurboBatchKVCache`: sequences of unequal length in one layer, behind mlx-lm's batch protocol.

Every row is a `TurboKVCache` of its own, so no row pays for the length of another and rows move
between batches without a copy. Offsets, left padding and masks are kept as mlx-lm's `BatchKVCache`
keeps them, because models build one mask for all layers from whichever cache comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import create_attention_mask

from swiftlm_engine.turboquant.backend import Backend, default_backend
from swiftlm_engine.turboquant.codec import codec
from swiftlm_engine.turboquant.formats import PAGE_TOKENS, KVFormat, num_pages, parse_format
from swiftlm_engine.turboquant.packing import NibbleOrder, reorder_keys
from swiftlm_engine.turboquant.sequence import SequenceKV


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
        """The right-padded prompt is over: rows become right-aligned again.

        Tighter than `BatchKVCache`, whose padding never shrinks: a pass of several prompts must
        not hold both kinds (`Runner._can_share_a_pass` lets in plain KV alone).
        """
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

    def extend(self, other: TurboBatchKVCache) -> None:
        self._take(self.rows + [row.fork() for row in other.rows])

    def extract(self, idx: int) -> TurboKVCache:
        return self.rows[idx].fork()

    @classmethod
    def merge(cls, caches: Sequence[TurboKVCache]) -> TurboBatchKVCache:
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
    def from_state(cls, state: list[Any]) -> TurboBatchKVCache:
        return cls([TurboKVCache.from_state(one) for one in state])

    def __deepcopy__(self, memo: dict[int, Any]) -> TurboBatchKVCache:
        return TurboBatchKVCache([row.fork() for row in self.rows])


State = tuple[Any, ...]  # arrays, None, int and str, as mlx-lm's caches have it


class AttentionNotRouted(RuntimeError):
    """A bug in us: a model with turbo caches runs without `install`."""


class WindowNotSupported(RuntimeError):
    """A layer asked its turbo cache for a sliding-window mask."""


class TurboKVCache:
    """Compressed KV of one sequence. Not thread-safe; lives on the engine thread."""

    always_trimmable = True  # the prefix cache may cut a stored one at any length

    def __init__(self, format: KVFormat, head_dim: int, backend: Backend | None = None) -> None:
        self.backend = default_backend() if backend is None else backend
        self._open(format, head_dim)

    def _open(self, format: KVFormat, head_dim: int) -> None:
        self.kv = SequenceKV(codec(format, head_dim, self.backend.key_order(format, head_dim)))
        self._unanswered = False

    @property
    def format(self) -> KVFormat:
        return self.kv.codec.format

    @property
    def offset(self) -> int:
        return self.kv.num_tokens

    @property
    def num_compressed(self) -> int:
        """Tokens held in compressed form; report it wherever compression is claimed."""
        return self.kv.num_pages * PAGE_TOKENS

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes()

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Take in (1, H, T, d). The arrays returned are these, whole only for an empty cache."""
        if self._unanswered:
            raise AttentionNotRouted(
                "attention over a turbo cache was not routed; call turboquant.install(model)"
            )
        self.kv.append(keys, values)
        self._unanswered = True
        return keys, values

    def attend(self, queries: mx.array, scale: float) -> mx.array:
        """Attention of (1, Hq, T, d) queries for the T newest tokens; then compress. Lazy."""
        self._unanswered = False
        out = self.backend.attend(self.kv, queries, scale)
        self.kv.flush(queries, self.backend.encode)
        return out

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """Everything expanded, (1, H, N, d): for tests and for leaving the format."""
        keys, values = self.kv.keys_and_values()
        return keys[None], values[None]

    def size(self) -> int:
        return self.offset

    def empty(self) -> bool:
        return self.kv.num_tokens == 0

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int) -> int:
        return self.kv.trim(n)

    @property
    def tokens_before_flush(self) -> int:
        """Tokens that can still come before any is compressed. A draft that may be taken back must
        stay within them: what is compressed was attended exactly, and comes back changed."""
        held, pages = self.kv.num_tokens, self.kv.num_pages
        return next(n for n in count() if num_pages(held + n + 1) > pages)

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        if window_size is not None and self.offset + N > window_size:
            raise WindowNotSupported("a sliding-window layer must keep its own cache")
        return create_attention_mask(N, self.offset, return_array, None)

    def fork(self) -> TurboKVCache:
        """A copy that shares memory until one side writes."""
        twin = object.__new__(TurboKVCache)
        twin.backend, twin.kv, twin._unanswered = self.backend, self.kv.fork(), False
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> TurboKVCache:
        return self.fork()

    @property
    def state(self) -> State:
        """All there is: arrays as they are, counts, format, head size, nibble order."""
        kv = self.kv
        facts = (kv.num_exact, kv.num_pages, self.format.name, kv.codec.head_dim)
        return (*kv.arrays(), *facts, int(kv.codec.order))

    @state.setter
    def state(self, state: State) -> None:
        *arrays, num_exact, pages, name, head_dim, order = state
        format = parse_format(name)
        self._open(format, head_dim)
        wanted = self.kv.codec.order
        if arrays[2] is not None and format.key_bits == 4:
            arrays[2] = reorder_keys(arrays[2], NibbleOrder(order), wanted)
        self.kv.num_exact, self.kv.num_pages = num_exact, pages
        self.kv.adopt(arrays)

    @classmethod
    def from_state(cls, state: State) -> TurboKVCache:
        cache = cls.__new__(cls)
        cache.backend = default_backend()
        cache.state = state
        return cache

    @classmethod
    def merge(cls, caches: Sequence[TurboKVCache]) -> Any:
        pass

        return TurboBatchKVCache.merge(caches)
