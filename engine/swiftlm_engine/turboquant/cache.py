"""`TurboKVCache`: one sequence in one layer, behind mlx-lm's cache protocol.

`update_and_fetch` only takes the new tokens in; `attend`, which the router calls right after it,
computes the attention and then compresses what is old enough. An `update_and_fetch` whose attention
was not routed is found at the next one, never answered with a shortened context.
"""

from collections.abc import Sequence
from itertools import count
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import create_attention_mask

from swiftlm_engine.turboquant.backend import Backend, default_backend
from swiftlm_engine.turboquant.codec import codec
from swiftlm_engine.turboquant.formats import PAGE_TOKENS, KVFormat, num_pages, parse_format
from swiftlm_engine.turboquant.packing import NibbleOrder, reorder_keys
from swiftlm_engine.turboquant.sequence import SequenceKV

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

    def fork(self) -> "TurboKVCache":
        """A copy that shares memory until one side writes."""
        twin = object.__new__(TurboKVCache)
        twin.backend, twin.kv, twin._unanswered = self.backend, self.kv.fork(), False
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> "TurboKVCache":
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
    def from_state(cls, state: State) -> "TurboKVCache":
        cache = cls.__new__(cls)
        cache.backend = default_backend()
        cache.state = state
        return cache

    @classmethod
    def merge(cls, caches: Sequence["TurboKVCache"]) -> Any:
        from swiftlm_engine.turboquant.batch import TurboBatchKVCache  # it holds this class

        return TurboBatchKVCache.merge(caches)
