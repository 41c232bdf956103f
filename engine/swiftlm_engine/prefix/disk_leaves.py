"""Leaves to bytes and back, for the SSD tier. Engine thread only.

A leaf with a token axis goes to disk by token ranges, in the order of its tokens. Any other leaf
goes as its whole `state` (and `meta_state` where it has one): a tree with the arrays taken out.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import ChunkedKVCache, QuantizedKVCache, RotatingKVCache

from swiftlm_engine.kv.shared_cache import SharedKVCache
from swiftlm_engine.prefix.block_file import ArrayRecord
from swiftlm_engine.prefix.snapshot import PLAIN, Cache, LeafKind, kind_of


class NotStorable(ValueError):
    """The state of this cache class holds something that no file can."""


@dataclass(frozen=True, slots=True)
class DiskLayout:
    """Which leaves go to disk by tokens, which of those are windows, which go whole."""

    leaves: tuple[Cache, ...]  # empty caches to restore into; never updated
    trunk: tuple[int, ...]
    windows: tuple[int, ...]
    whole: tuple[int, ...]

    @classmethod
    def of(cls, leaves: Sequence[Cache]) -> "DiskLayout":
        by_tokens = [i for i, leaf in enumerate(leaves) if _goes_by_tokens(leaf)]
        return cls(
            leaves=tuple(leaves),
            trunk=tuple(i for i in by_tokens if kind_of(leaves[i]) is LeafKind.TRUNK),
            windows=tuple(i for i in by_tokens if kind_of(leaves[i]) is LeafKind.WINDOW),
            whole=tuple(i for i in range(len(leaves)) if i not in by_tokens),
        )

    @property
    def window_sizes(self) -> tuple[int, ...]:
        return tuple(window_size(self.leaves[i]) for i in self.windows)


def _goes_by_tokens(leaf: Cache) -> bool:
    return kind_of(leaf) is LeafKind.WINDOW or (
        kind_of(leaf) is LeafKind.TRUNK and isinstance(leaf, (*PLAIN, SharedKVCache))
    )


def window_size(leaf: Cache) -> int:
    return int(leaf.chunk_size if isinstance(leaf, ChunkedKVCache) else leaf.max_size)


@dataclass(frozen=True, slots=True)
class SharedTokens:
    """As `TokenArrays`, of a leaf whose buffers others may write on: takes a view when asked."""

    leaf: SharedKVCache

    @property
    def first(self) -> int:
        return 0

    @property
    def end(self) -> int:
        return self.leaf.offset

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.leaf.held_bytes())

    def between(self, low: int, high: int) -> list[mx.array]:
        return list(self.leaf.between(low, high))


@dataclass(frozen=True, slots=True)
class TokenArrays:
    """A leaf's keys and values in token order: positions [first, end). Lazy."""

    first: int
    end: int
    arrays: tuple[mx.array, ...]  # (1, H, end - first, ...) each

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def between(self, low: int, high: int) -> list[mx.array]:
        return [a[:, :, low - self.first : high - self.first] for a in self.arrays]


def token_arrays(leaf: Cache) -> TokenArrays | SharedTokens:
    if isinstance(leaf, SharedKVCache):
        return SharedTokens(leaf)
    keys, values = leaf.keys, leaf.values
    if isinstance(leaf, RotatingKVCache):
        keys, values = leaf._temporal_order(keys), leaf._temporal_order(values)
    first = int(leaf.start_position) if isinstance(leaf, ChunkedKVCache) else 0
    arrays = [array for _, array in list(tree_flatten((keys, values)))]
    if isinstance(leaf, RotatingKVCache):
        first = int(leaf.offset) - arrays[0].shape[2]
    end = int(leaf.offset)
    return TokenArrays(first, end, tuple(a[:, :, : end - first] for a in arrays))


def leaf_from_tokens(empty: Cache, arrays: Sequence[mx.array], length: int) -> Cache:
    """A leaf at `length` tokens that holds the newest of them: those in `arrays`."""
    if isinstance(empty, SharedKVCache):
        shared = SharedKVCache(empty.sharing)
        keys, values = arrays
        shared.adopt(keys, values, length)
        return shared
    leaf = copy.deepcopy(empty)
    half = len(arrays) // 2
    if isinstance(leaf, QuantizedKVCache):
        leaf.keys, leaf.values = tuple(arrays[:half]), tuple(arrays[half:])
    else:
        leaf.keys, leaf.values = arrays
    leaf.offset = length
    held = arrays[0].shape[2]
    if isinstance(leaf, RotatingKVCache):
        leaf._idx = held
    elif isinstance(leaf, ChunkedKVCache):
        leaf.start_position = length - held
    return leaf


def take_apart(leaf: Cache) -> tuple[Any, list[mx.array]]:
    """The whole state of a leaf as a JSON tree plus the arrays the tree refers to by number."""
    settable = getattr(type(leaf), "state", None)
    if isinstance(settable, property) and settable.fset is None:
        raise NotStorable(f"the state of a {type(leaf).__name__} cannot be put back")
    arrays: list[mx.array] = []
    content = [leaf.state, getattr(leaf, "meta_state", None)]
    return _tree_of(content, arrays), arrays


def put_together(empty: Cache, tree: Any, arrays: Sequence[mx.array]) -> Cache:
    leaf = copy.deepcopy(empty)
    state, meta_state = _value_of(tree, arrays)
    leaf.state = state
    if meta_state is not None:
        leaf.meta_state = meta_state
    return leaf


def _tree_of(value: Any, arrays: list[mx.array]) -> Any:
    if isinstance(value, mx.array):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_tree_of(item, arrays) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[str(key), _tree_of(item, arrays)] for key, item in value.items()]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise NotStorable(f"a cache state holds a {type(value).__name__}")


def _value_of(tree: Any, arrays: Sequence[mx.array]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "array":
        return arrays[content]
    if kind == "dict":
        return {key: _value_of(item, arrays) for key, item in content}
    items = [_value_of(item, arrays) for item in content]
    return items if kind == "list" else tuple(items)


def to_bytes(leaf: int, array: mx.array) -> tuple[ArrayRecord, bytes]:
    """Copies the array out; the result shares nothing with MLX."""
    data = bytes(memoryview(mx.contiguous(array).reshape(-1).view(mx.uint8)))
    dtype = str(array.dtype).removeprefix("mlx.core.")
    return ArrayRecord(leaf, dtype, tuple(array.shape), len(data)), data


def from_bytes(record: ArrayRecord, data: memoryview) -> mx.array:
    flat = mx.array(data).view(getattr(mx, record.dtype))
    return flat.reshape(record.shape)
