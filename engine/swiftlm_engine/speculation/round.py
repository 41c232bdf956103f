"""A checked pass as a transaction over all caches of a row: what was rejected leaves no trace.

Caches that keep every token are trimmed. A window still has what it dropped for the last tokens of
a block, because `RotatingKVCache` keeps a whole block on top until the next single token, so that
it is cut, too. A recurrent state cannot go back: it is kept from before the pass, and where a token
was rejected all caches go back there. The tokens that hold are then fed again with the next pass
over this row (`behind`): no pass is made for them alone as long as drafts go on.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from mlx_lm.models.cache import ChunkedKVCache, RotatingKVCache

from swiftlm_engine.prefix.snapshot import LeafKind, is_empty, kind_of, leaves_of, map_arrays

Caches = Sequence[Any]


class Round:
    """From before a pass over `fed` tokens until the next pass over the same caches."""

    def __init__(self, caches: Caches, fed: list[int]) -> None:
        """Holds what it takes to go back; no copies of buffers."""
        self.behind: list[int] = []  # tokens of `fed` that hold and that the caches lack
        self._fed = fed
        self._num_kept = len(fed)
        self._leaves = leaves_of(caches)
        self._before = {
            at: copy.deepcopy(leaf) for at, leaf in enumerate(self._leaves) if _cannot_trim(leaf)
        }
        self._is_back = False

    def keep(self, count: int) -> None:
        """Of the tokens that were fed the first `count` hold. May be called again with fewer."""
        rejected, self._num_kept = self._num_kept - count, count
        if not self._before:
            self._trim(rejected)
        elif rejected or self._is_back:
            self._go_back()
            self.behind = self._fed[:count]

    def keep_fewer(self, count: int) -> None:
        """The last `count` of those that held are not wanted."""
        self.keep(self._num_kept - count)

    def _go_back(self) -> None:
        if self._is_back:
            return
        self._is_back = True
        self._trim(len(self._fed))
        for at, before in self._before.items():
            self._leaves[at].__dict__.update(vars(before))

    def _trim(self, count: int) -> None:
        for at, leaf in enumerate(self._leaves):
            if at not in self._before:
                take_back(leaf, count)


def needs_replay(caches: Caches) -> bool:
    """Whether some layer cannot be trimmed."""
    return any(_cannot_trim(leaf) for leaf in leaves_of(caches))


def take_back(leaf: Any, count: int) -> None:
    """Removes the last tokens, which were fed in the last pass, with others or not."""
    if not count or is_empty(leaf):
        return
    if type(leaf) is RotatingKVCache:
        held = leaf.keys.shape[2]
        if leaf._idx != held:
            raise ValueError("a window that has gone on by single tokens cannot go back")
        map_arrays(leaf, lambda a: a[:, :, : held - count])
        leaf.offset, leaf._idx = leaf.offset - count, held - count
    elif (trimmed := leaf.trim(count)) != count:
        raise ValueError(f"{type(leaf).__name__} trimmed {trimmed} of {count} tokens")


def _cannot_trim(leaf: Any) -> bool:
    return kind_of(leaf) is LeafKind.STATE and type(leaf) not in (RotatingKVCache, ChunkedKVCache)
