"""mlx-lm caches as immutable snapshots, and back.

A leaf is one cache object without CacheList around it. A snapshot of a leaf is a clone that nobody
updates. Clones share buffers but never an `mx.array` object: `array[...] = x` replaces the value of
the Python object in place, so an object in two caches would change both; with two objects MLX sees
a shared buffer and copies it on the first write. Taking and giving back therefore copy nothing.

`SharedKVCache` shares without MLX's help: taking and giving are forks, and no write copies.

Any cache class works through what mlx-lm asks of one: `state`, `is_trimmable`, `trim`, and a
`copy.deepcopy` that shares buffers (mx.array's does). A class outside mlx-lm can do better:
`always_trimmable = True` puts it into the trunk; it must then trim to every shorter length.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import (
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from swiftlm_engine.kv.shared_cache import SharedKVCache, fit

# mlx-lm's caches share a duck type only; the header says which part of it is used.
Cache = Any


class LeafKind(Enum):
    TRUNK = "trunk"  # any shorter prefix can be cut from it
    WINDOW = "window"  # per token, but the oldest tokens go once it is full
    STATE = "state"  # anything else: serves what it says it can trim to


# mlx-lm's classes that keep every token.
PLAIN = (KVCache, QuantizedKVCache, ConcatenateKVCache)


def kind_of(leaf: Cache) -> LeafKind:
    if type(leaf) in PLAIN or getattr(leaf, "always_trimmable", False):
        return LeafKind.TRUNK
    if type(leaf) is ChunkedKVCache:
        return LeafKind.WINDOW
    if type(leaf) is RotatingKVCache and leaf.keep == 0:
        return LeafKind.WINDOW
    return LeafKind.STATE


def leaves_of(caches: Sequence[Cache]) -> list[Cache]:
    """The leaves in order; a CacheList may hold CacheLists."""
    flat: list[Cache] = []
    for cache in caches:
        flat.extend(leaves_of(cache.caches) if isinstance(cache, CacheList) else [cache])
    return flat


def assemble(shape: Sequence[Cache], leaves: Iterator[Cache]) -> list[Cache]:
    """The given leaves in order, nested in CacheLists as `shape` is."""
    nested = []
    for cache in shape:
        if isinstance(cache, CacheList):
            twin = copy.copy(cache)
            twin.caches = tuple(assemble(cache.caches, leaves))
            nested.append(twin)
        else:
            nested.append(next(leaves))
    return nested


def take(leaf: Cache) -> Cache:
    """An immutable snapshot of a live leaf, without memory that no prefix needs. Lazy."""
    if isinstance(leaf, SharedKVCache):
        shared = leaf.fork()
        fit(shared.extents())
        return shared
    snapshot = copy.deepcopy(leaf)
    if not is_empty(snapshot):
        _drop_slack(snapshot)
        _own_buffers(snapshot)
    return snapshot


def give(snapshot: Cache, length: int, shorter_by: int) -> Cache:
    """A fresh leaf with the first `length` tokens, `shorter_by` fewer than the snapshot. Lazy."""
    if isinstance(snapshot, SharedKVCache):
        return snapshot.fork(snapshot.offset - shorter_by)
    leaf = copy.deepcopy(snapshot)
    if shorter_by == 0 or is_empty(leaf):
        return leaf
    trimmed = leaf.trim(shorter_by)
    if trimmed != shorter_by:
        raise ValueError(f"{type(leaf).__name__} trimmed {trimmed} of {shorter_by} tokens")
    if has_token_axis(leaf):
        # The first write then copies these tokens only, not all that the snapshot holds.
        map_arrays(leaf, lambda a: a[:, :, : length - first_token(leaf)])
    return leaf


def compact(leaf: Cache) -> Cache:
    """A clone whose arrays own just their bytes, so that the buffers it came from can go. Lazy."""
    if isinstance(leaf, SharedKVCache):
        return leaf  # `fit` gives back what nobody holds any more
    twin = copy.deepcopy(leaf)
    if has_token_axis(twin) and not is_empty(twin):
        map_arrays(twin, mx.contiguous)
    return twin


def floor_of(leaf: Cache, length: int) -> int:
    """The shortest prefix that a snapshot of `leaf`, now at `length` tokens, can serve."""
    if kind_of(leaf) is LeafKind.TRUNK or is_empty(leaf):
        return 0
    if type(leaf) is ChunkedKVCache:
        # It calls itself trimmable even when its oldest tokens are gone.
        return 0 if leaf.start_position == 0 else length
    return 0 if leaf.is_trimmable() else length


def length_of(leaf: Cache) -> int | None:
    """How many tokens the leaf has taken in; None where it does not say (recurrent state)."""
    offset = getattr(leaf, "offset", None)
    return offset if isinstance(offset, int) and not is_empty(leaf) else None


def is_empty(leaf: Cache) -> bool:
    """True before the first token, and for ever in a layer that this architecture never feeds."""
    return hasattr(leaf, "empty") and bool(leaf.empty())


def arrays_of(leaf: Cache) -> list[mx.array]:
    values = [value for _, value in list(tree_flatten(leaf.state))]
    return [value for value in values if isinstance(value, mx.array)]


def leaf_nbytes(leaf: Cache) -> int:
    if isinstance(leaf, SharedKVCache):
        return sum(nbytes for _, nbytes in leaf.held_bytes())
    return sum(array.nbytes for array in arrays_of(leaf))


def has_token_axis(leaf: Cache) -> bool:
    """Whether keys and values are (1, H, tokens, ...) arrays in order of the tokens."""
    if type(leaf) in PLAIN or type(leaf) is ChunkedKVCache:
        return True
    # Once a ring has wrapped, its slots are no longer in order.
    return type(leaf) is RotatingKVCache and (is_empty(leaf) or leaf._idx >= held_tokens(leaf))


def first_token(leaf: Cache) -> int:
    """Position of the oldest token a leaf with a token axis holds."""
    if type(leaf) is ChunkedKVCache:
        return int(leaf.start_position)
    if type(leaf) is RotatingKVCache:
        return max(0, int(leaf.offset) - int(leaf._idx))
    return 0


def held_tokens(leaf: Cache) -> int:
    """Allocated length of the token axis."""
    first = leaf.keys[0] if isinstance(leaf.keys, (list, tuple)) else leaf.keys
    return int(first.shape[2])


def map_arrays(leaf: Cache, change: Callable[[mx.array], mx.array]) -> None:
    leaf.keys = tree_map(change, leaf.keys)
    leaf.values = tree_map(change, leaf.values)


def _own_buffers(leaf: Cache) -> None:
    """A view of a chunk or of a row in a batch would keep all of it; a buffer that holds no more
    than its array stays shared."""
    own = _own if kind_of(leaf) is LeafKind.STATE else _shared_or_own
    for name, value in list(getattr(leaf, "__dict__", {}).items()):
        if isinstance(value, (mx.array, list, tuple, dict)):
            setattr(leaf, name, tree_map(own, value))


def _shared_or_own(value: Any) -> Any:
    # MLX shares a buffer up to 16 KiB larger than the array, else it copies.
    return mx.contiguous(value) if isinstance(value, mx.array) else value


def _own(value: Any) -> Any:
    """States are small and many: 16 KiB more for each array would be several times their bytes."""
    if isinstance(value, mx.array) and value.ndim and value.nbytes <= _ALWAYS_COPIED_BYTES:
        return mx.take(value, mx.arange(value.shape[0]), axis=0)
    return _shared_or_own(value)


# Of a larger array 16 KiB are next to nothing.
_ALWAYS_COPIED_BYTES = 512 << 10
# A buffer with more unused steps than this share of the used ones is copied out when stored.
_MAX_SLACK = 0.25


def _drop_slack(leaf: Cache) -> None:
    if type(leaf) is RotatingKVCache:
        excess = held_tokens(leaf) - leaf.max_size
        if excess > 0 and leaf.keep == 0 and leaf._idx == held_tokens(leaf):
            # A prefill chunk stays on top of the window until the next update.
            map_arrays(leaf, lambda a: mx.contiguous(a[:, :, excess:]))
            leaf._idx = leaf.max_size
    elif has_token_axis(leaf):
        used = leaf.offset - first_token(leaf)
        if held_tokens(leaf) > used * (1 + _MAX_SLACK):
            map_arrays(leaf, lambda a: mx.contiguous(a[:, :, :used]))
