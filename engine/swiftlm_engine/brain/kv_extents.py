"""Who holds which tokens of which buffer: the tables behind exact KV, without tensors.

An extent is a run of consecutive tokens in one buffer, which only grows at its end. A sequence has
a table: holds on extents that, one after another, are its tokens. Any number of sequences may hold
the first tokens of an extent, and whoever reaches furthest may write behind them. Another one that
wants to go on from there gets an extent of its own for what comes next.

Tokens below the end of a hold never change. Holds count by weak references: a cache is dropped in
many places and by mlx-lm's rules has nothing to close, so that nothing can leak or be freed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from weakref import WeakSet, ref

Buffer = TypeVar("Buffer")

MAX_EXTENTS = 4  # of one table: attention takes each by itself


class Extent(Generic[Buffer]):
    """`buffer` is where its tokens are; nothing here looks into it."""

    __slots__ = ("__weakref__", "_holds", "_writer", "buffer")

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self._holds: WeakSet[Hold[Buffer]] = WeakSet()
        self._writer: Callable[[], Hold[Buffer] | None] = _nobody

    @property
    def needed(self) -> int:
        """Tokens that somebody holds."""
        return max((hold.length for hold in self._holds), default=0)

    def may_grow(self, hold: Hold[Buffer]) -> bool:
        """Whether the tokens behind `hold` are nobody's."""
        if self._writer() is hold:
            return True
        if any(other.length > hold.length for other in self._holds if other is not hold):
            return False
        self._writer = ref(hold)
        return True

    def add(self, hold: Hold[Buffer]) -> None:
        self._holds.add(hold)

    def forget_writer(self) -> None:
        self._writer = _nobody


def _nobody() -> None:
    return None


class Hold(Generic[Buffer]):
    """The first `length` tokens of an extent, held by one table."""

    __slots__ = ("__weakref__", "extent", "length")

    def __init__(self, extent: Extent[Buffer], length: int) -> None:
        self.extent, self.length = extent, length
        extent.add(self)


class ExtentTable(Generic[Buffer]):
    """The holds of one sequence, in the order of its tokens."""

    __slots__ = ("_make_buffer", "holds")

    def __init__(self, make_buffer: Callable[[], Buffer]) -> None:
        self._make_buffer = make_buffer
        self.holds: list[Hold[Buffer]] = []

    @property
    def length(self) -> int:
        return sum(hold.length for hold in self.holds)

    def fork(self, length: int) -> ExtentTable[Buffer]:
        """Another table of the first `length` tokens; copies nothing."""
        twin = ExtentTable(self._make_buffer)
        twin.holds = [Hold(extent, count) for extent, count in self._first(length)]
        return twin

    def grow(self, count: int, min_shared: int) -> list[Hold[Buffer]]:
        """Make room for `count` tokens at the end of the last hold.

        The holds returned have left the table: their tokens come first in a new last extent, and
        the caller copies them. Those of fewer than `min_shared` tokens are not worth sharing.
        """
        if self.holds and self.holds[-1].extent.may_grow(self.holds[-1]):
            self.holds[-1].length += count
            return []
        return self._move(self._num_worth_sharing(min_shared), count)

    def open(self, count: int) -> Buffer:
        """A new last extent of `count` tokens, whose buffer the caller fills."""
        self._move(len(self.holds), count)
        return self.holds[-1].extent.buffer

    def gather(self) -> list[Hold[Buffer]]:
        """Move everything to one extent; as `grow`. Nothing where there is no more than one."""
        return self._move(0, 0) if len(self.holds) > 1 else []

    def trim(self, count: int) -> None:
        """Let go of the newest `count` tokens."""
        while count and self.holds:
            last = self.holds[-1]
            taken = min(count, last.length)
            last.length -= taken
            count -= taken
            last.extent.forget_writer()
            if last.length == 0:
                self.holds.pop()

    def _first(self, length: int) -> list[tuple[Extent[Buffer], int]]:
        found = []
        for hold in self.holds:
            if length <= 0:
                break
            found.append((hold.extent, min(length, hold.length)))
            length -= hold.length
        return found

    def _num_worth_sharing(self, min_shared: int) -> int:
        for i, hold in enumerate(self.holds[: MAX_EXTENTS - 1]):
            if hold.length < min_shared:
                return i
        return min(len(self.holds), MAX_EXTENTS - 1)

    def _move(self, keep: int, count: int) -> list[Hold[Buffer]]:
        moved = self.holds[keep:]
        extent = Extent(self._make_buffer())
        hold = Hold(extent, sum(one.length for one in moved) + count)
        extent.may_grow(hold)
        self.holds = [*self.holds[:keep], hold]
        return moved


@dataclass(slots=True)
class SharedBytes:
    """Bytes of things that several owners have in common: the most that any of them needs counts,
    once."""

    _claims: dict[Hashable, list[int]] = field(default_factory=dict)
    surplus: int = 0  # the sum over owners is too high by so much

    def add(self, key: Hashable, nbytes: int) -> None:
        claims = self._claims.setdefault(key, [])
        before = _surplus(claims)
        claims.append(nbytes)
        self.surplus += _surplus(claims) - before

    def remove(self, key: Hashable, nbytes: int) -> None:
        claims = self._claims[key]
        before = _surplus(claims)
        claims.remove(nbytes)
        self.surplus += _surplus(claims) - before
        if not claims:
            del self._claims[key]

    def of(self, key: Hashable) -> int:
        return max(self._claims.get(key, ()), default=0)

    def __len__(self) -> int:
        return len(self._claims)


def _surplus(claims: list[int]) -> int:
    return sum(claims) - max(claims, default=0)
