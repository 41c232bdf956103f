"""A follower's part of the prefixes that the leader's index knows, by the leader's numbers.

What is stored, cut, evicted and given out is decided there; here the same is done to this rank's
layers or heads. The bytes follow the leader's budget: as many more or fewer as this rank holds more
or less of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

from swiftlm_engine.brain.prefix_index import CachedPart
from swiftlm_engine.prefix.ram import CacheLayout, Leaves, assembled, cut
from swiftlm_engine.prefix.snapshot import Cache, arrays_of


class KeptPrefixes:
    """Belongs to the thread that evaluates. Evaluated: nothing kept holds a graph."""

    def __init__(self, new_caches: Callable[[], Sequence[Cache]]) -> None:
        self._layout = CacheLayout.of(new_caches())
        self._leaves: dict[int, Leaves] = {}

    def keep(self, number: int, part: CachedPart, caches: Sequence[Cache]) -> None:
        self._hold(number, self._layout.snapshots(caches)[part])

    def shorten(self, number: int, kept: int, length: int, shorter_by: int) -> None:
        self._hold(number, cut(self._leaves[kept], length, shorter_by))

    def forget(self, number: int) -> None:
        del self._leaves[number]

    def give(self, kept: Sequence[tuple[int, int]], length: int) -> list[Cache]:
        """Fresh caches of the first `length` tokens."""
        parts = [(self._leaves[number], shorter_by) for number, shorter_by in kept]
        return assembled(self._layout, parts, length)

    def _hold(self, number: int, leaves: Leaves) -> None:
        mx.eval([arrays_of(leaf) for leaf in leaves.values()])
        self._leaves[number] = leaves
