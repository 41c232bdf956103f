"""`SharedKVCache`: one layer's exact keys and values of one sequence, in buffers that it shares.

Behind mlx-lm's cache protocol, in the place of its `KVCache`. Several sequences and the prefix
cache hold the same buffers: a fork copies nothing, and whoever continues at the end of a buffer
writes there in place (`brain/kv_extents.py` says who may). Each buffer has one Python object for
its keys and one for its values, however many share it, since MLX writes in place only into an
array that nobody else refers to.

While a cache is in one buffer, it behaves as `KVCache` does, to the bit. A longer one hands out
its buffers joined, for a prefill pass, or as `KVParts` where attention takes them one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache, CacheList, KVCache, create_attention_mask

from swiftlm_engine.brain.kv_extents import Extent, ExtentTable, Hold
from swiftlm_engine.kv.parts_attention import KVParts

STEP_TOKENS = KVCache.step  # the buffer of a whole sequence grows by so many
TAIL_STEP_TOKENS = 64  # what comes behind shared tokens is short, and there may be many of it
# A buffer with more unused tokens than this share of the used ones is copied out to its size.
MAX_SLACK = 0.25


@dataclass(slots=True)
class Sharing:
    """Of one model: from how many tokens on sharing is better than copying."""

    min_tokens: int
    takes_parts: bool = False  # its attention was tried on `KVParts` and takes them

    def switch_off(self) -> None:
        """The model computes with the keys it gets back."""
        self.takes_parts, self.min_tokens = False, 1 << 62


class KVBuffer:
    """Keys and values of consecutive tokens; (1, H, capacity, d) each, None before the first."""

    __slots__ = ("keys", "values")

    def __init__(self) -> None:
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def capacity(self) -> int:
        return 0 if self.keys is None else int(self.keys.shape[2])

    @property
    def nbytes(self) -> int:
        if self.keys is None or self.values is None:
            return 0
        return int(self.keys.nbytes + self.values.nbytes)

    def write(self, start: int, keys: mx.array, values: mx.array, step: int = STEP_TOKENS) -> None:
        """Put tokens in at `start`; there is nothing behind them. Lazy."""
        stop = start + keys.shape[2]
        if self.keys is None or self.values is None or stop > self.capacity:
            self.keys = _grown(self.keys, start, keys, step)
            self.values = _grown(self.values, start, values, step)
        self.keys[..., start:stop, :] = keys
        self.values[..., start:stop, :] = values

    def read(self, stop: int, start: int = 0) -> tuple[mx.array, mx.array]:
        """Tokens [start, stop) as views: to be used and dropped, or the next write copies."""
        assert self.keys is not None
        assert self.values is not None
        if start == 0 and stop == self.capacity:
            return self.keys, self.values
        return self.keys[..., start:stop, :], self.values[..., start:stop, :]

    def fit(self, needed: int) -> None:
        """Give back what nobody needs, if that is a good part of it; evaluated by and by."""
        spare = self.capacity - needed
        if needed and spare > needed * MAX_SLACK:
            self.keys, self.values = map(mx.contiguous, self.read(needed))
            mx.async_eval(self.keys, self.values)


def _grown(held: mx.array | None, used: int, new: mx.array, step: int) -> mx.array:
    """Room for `new` behind what is used: whole steps in all, as they are priced."""
    batch, heads, count, dim = new.shape
    capacity = (used + count + step - 1) // step * step
    room = mx.zeros((batch, heads, capacity - used, dim), new.dtype)
    if held is None or used == 0:
        return room
    return mx.concatenate([held[..., :used, :] if used < held.shape[2] else held, room], axis=2)


class PaddedKVCache(BatchKVCache):
    """mlx-lm's batch, which grows to whole small steps in all, not by a large one from where it is:
    what its rows take stays close to what they are priced at."""

    step = TAIL_STEP_TOKENS
    keys: Any  # mx.array or None
    values: Any

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        if self.keys is not None and self._idx + keys.shape[2] > self.keys.shape[2]:
            self.keys = _grown(self.keys, self._idx, keys, self.step)
            self.values = _grown(self.values, self._idx, values, self.step)
        return super().update_and_fetch(keys, values)


class SharedKVCache:
    """Owns its table. `in_parts`: hands out `KVParts`, once its model is known to take them."""

    always_trimmable = True  # see prefix/snapshot.py
    step = STEP_TOKENS

    def __init__(self, sharing: Sharing) -> None:
        self.sharing = sharing
        self.table: ExtentTable[KVBuffer] = ExtentTable(KVBuffer)
        self.offset = 0
        self.in_parts = False

    @classmethod
    def of(cls, plain: KVCache, sharing: Sharing) -> SharedKVCache:
        """Takes over the arrays of a plain cache."""
        cache = cls(sharing)
        if not plain.empty():
            cache.adopt(plain.keys, plain.values, plain.offset)
        return cache

    @classmethod
    def merge(cls, caches: Sequence[SharedKVCache]) -> PaddedKVCache:
        """A padded copy."""
        return PaddedKVCache.merge(caches)

    # -- what models call

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        self.append(keys, values)
        return self.fetch()

    def append(self, keys: mx.array, values: mx.array) -> None:
        count = keys.shape[2]
        moved = self.table.grow(count, self.sharing.min_tokens)
        if moved:
            self._copy_in(moved)
        last = self.table.holds[-1]
        step = STEP_TOKENS if len(self.table.holds) == 1 else TAIL_STEP_TOKENS
        last.extent.buffer.write(last.length - count, keys, values, step)
        self.offset += count

    def fetch(self) -> Any:
        """Arrays (1, H, N, d), or twice the `KVParts` of several buffers."""
        if len(self.table.holds) > 1 and self.in_parts and self.sharing.takes_parts:
            parts = [hold.extent.buffer.read(hold.length) for hold in self.table.holds]
            return KVParts([k for k, _ in parts]), KVParts([v for _, v in parts])
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """All tokens; a copy of several buffers, not kept."""
        return self._joined(self.table.holds)

    def make_mask(self, *args: Any, **kwargs: Any) -> Any:
        return create_attention_mask(*args, offset=self.offset, **kwargs)

    def size(self) -> int:
        return self.offset

    def empty(self) -> bool:
        return not self.table.holds

    def is_trimmable(self) -> bool:
        return True

    def trim(self, count: int) -> int:
        count = min(self.offset, count)
        self.table.trim(count)
        self.offset -= count
        return count

    @property
    def keys(self) -> mx.array | None:
        return None if self.empty() else self.keys_and_values()[0]

    @property
    def values(self) -> mx.array | None:
        return None if self.empty() else self.keys_and_values()[1]

    @property
    def state(self) -> tuple[Any, ...]:
        """The buffers as they are, to be evaluated."""
        return (*(a for x in self.extents() for a in (x.buffer.keys, x.buffer.values)), self.offset)

    @property
    def nbytes(self) -> int:
        """What it would hold alone."""
        return sum(extent.buffer.nbytes for extent in self.extents())

    # -- sharing

    def fork(self, length: int | None = None) -> SharedKVCache:
        """Another cache of the first `length` tokens (all of them). Copies nothing."""
        twin = SharedKVCache(self.sharing)
        twin.table = self.table.fork(self.offset if length is None else length)
        twin.offset = twin.table.length
        return twin

    def gather(self) -> None:
        """Into one buffer of its own, where it was in several. Lazy."""
        if moved := self.table.gather():
            self._copy_in(moved)

    def taking(self, plain: KVCache) -> SharedKVCache:
        """Another cache of this model with the arrays of `plain`."""
        return SharedKVCache.of(plain, self.sharing)

    def extents(self) -> list[Extent[KVBuffer]]:
        return [hold.extent for hold in self.table.holds]

    @property
    def spare_tokens(self) -> int:
        """Until its last buffer has to grow by another step."""
        if len(self.table.holds) == 1:
            return -self.offset % STEP_TOKENS
        return -self.table.holds[-1].length % TAIL_STEP_TOKENS if self.table.holds else 0

    def held_bytes(self) -> list[tuple[Extent[KVBuffer], int]]:
        """Of each extent the bytes of the tokens that are held here."""
        return [
            (hold.extent, hold.extent.buffer.nbytes * hold.length // hold.extent.buffer.capacity)
            for hold in self.table.holds
        ]

    def tokens_from(self, start: int) -> KVCache:
        """The tokens behind the first `start` in a plain cache, copied. Lazy."""
        plain = KVCache()
        plain.step = TAIL_STEP_TOKENS
        if start < self.offset:
            keys, values = self.between(start, self.offset)
            plain.keys, plain.values = mx.contiguous(keys), mx.contiguous(values)
            plain.offset = self.offset - start
        return plain

    def between(self, low: int, high: int) -> tuple[mx.array, mx.array]:
        """Tokens [low, high): views of one buffer, or a copy. Not to be kept."""
        pieces, first = [], 0
        for hold in self.table.holds:
            start, stop = max(low - first, 0), min(high - first, hold.length)
            if start < stop:
                pieces.append(hold.extent.buffer.read(stop, start))
            first += hold.length
        return _concatenated(pieces)

    def adopt(self, keys: mx.array, values: mx.array, length: int) -> None:
        """Continue with `length` tokens in arrays that are its own from now on."""
        buffer = self.table.open(length)
        buffer.keys, buffer.values = keys, values
        self.offset += length

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedKVCache:
        """Independent of this one; MLX copies what either writes."""
        twin = SharedKVCache(self.sharing)
        twin.in_parts = self.in_parts
        for hold in self.table.holds:
            buffer = hold.extent.buffer
            own = KVBuffer()
            assert buffer.keys is not None
            assert buffer.values is not None
            own.keys, own.values = buffer.keys[...], buffer.values[...]
            twin.table.holds.append(Hold(Extent(own), hold.length))
        twin.offset = self.offset
        return twin

    def _copy_in(self, moved: Sequence[Hold[KVBuffer]]) -> None:
        """What has left the table comes first in its new last buffer."""
        keys, values = self._joined(moved)
        step = STEP_TOKENS if len(self.table.holds) == 1 else TAIL_STEP_TOKENS
        self.table.holds[-1].extent.buffer.write(0, keys, values, step)

    def _joined(self, holds: Sequence[Hold[KVBuffer]]) -> tuple[mx.array, mx.array]:
        return _concatenated([hold.extent.buffer.read(hold.length) for hold in holds])


def _concatenated(pieces: list[tuple[mx.array, mx.array]]) -> tuple[mx.array, mx.array]:
    if len(pieces) == 1:
        return pieces[0]
    return (
        mx.concatenate([keys for keys, _ in pieces], axis=2),
        mx.concatenate([values for _, values in pieces], axis=2),
    )


def shared_caches(caches: Sequence[Any], sharing: Sharing) -> list[Any]:
    """Fresh caches with those of mlx-lm that can be shared replaced."""
    return [SharedKVCache(sharing) if type(cache) is KVCache else cache for cache in caches]


def fit(extents: Iterable[Extent[KVBuffer]]) -> None:
    """After somebody let go: buffers no larger than those who are left need."""
    for extent in set(extents):
        extent.buffer.fit(extent.needed)


def extents_of(caches: Iterable[Any]) -> list[Extent[KVBuffer]]:
    """Those behind caches of any kind; one that several hold comes several times."""
    found: list[Extent[KVBuffer]] = []
    for cache in caches:
        if isinstance(cache, CacheList):
            found += extents_of(cache.caches)
        elif hasattr(cache, "extents"):
            found += cache.extents()
    return found


def held_nbytes(caches: Iterable[Any]) -> int:
    """Bytes behind caches of any kind; what several of them share counts once."""
    caches = list(caches)
    shared = sum(extent.buffer.nbytes for extent in set(extents_of(caches)))
    return shared + sum(_own_nbytes(cache) for cache in caches)


def _own_nbytes(cache: Any) -> int:
    if isinstance(cache, SharedKVCache):
        return 0
    if isinstance(cache, CacheList):
        return sum(map(_own_nbytes, cache.caches))
    own = getattr(cache, "own_nbytes", None)
    return int(cache.nbytes if own is None else own)
