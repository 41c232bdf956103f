"""What stands in a rank's list of caches for a layer that another rank holds.

So that every rank's list has one entry per layer, and merging, splitting, storing and cutting rows
goes the same way on all of them. It holds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import mlx.core as mx

from swiftlm_engine.prefix.snapshot import LeafKind, kind_of, leaves_of


class AbsentCache:
    """mlx-lm's cache protocol over no tokens; made by `absent`."""

    nbytes = 0
    state: tuple[mx.array, ...] = ()

    def __init__(self, stands_for: type, always_trimmable: bool) -> None:
        self.stands_for = stands_for
        self.always_trimmable = always_trimmable

    def is_trimmable(self) -> bool:
        return self.always_trimmable

    def trim(self, num_tokens: int) -> int:
        return num_tokens

    def empty(self) -> bool:
        return False


class AbsentMergeable(AbsentCache):
    """For a layer whose cache holds several rows at once: then it must here, too."""

    @classmethod
    def merge(cls, caches: Sequence[Self]) -> Self:
        return caches[0]

    def extract(self, row: int) -> Self:
        return self

    def extend(self, other: Self) -> None: ...

    def filter(self, rows: mx.array) -> None: ...


def absent(cache: Any) -> AbsentCache:
    """In the place of `cache`: as what it may do to prefixes and batches, and no more."""
    trimmable = all(kind_of(leaf) is LeafKind.TRUNK for leaf in leaves_of([cache]))
    kind = AbsentMergeable if hasattr(cache, "merge") else AbsentCache
    return kind(type(cache), trimmable)
