"""What the runner tells the other ranks of its group before it touches caches or model.

Every rank holds its share of the weights and of each sequence's KV. A call here makes the others
do the same thing to theirs; between the calls they decide nothing.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids
from typing import Protocol

import mlx.core as mx

from swiftlm_engine.brain.prefix_index import CachedPart

Key = tuple[str, int]  # of a sequence: request and choice


class Ranks(Protocol):
    def open(self, key: Key) -> None:
        """A sequence got empty caches."""

    def prefill(self, key: Key, ids: Ids[int]) -> None:
        """Its next prompt tokens are about to be evaluated."""

    def join(self, key: Key) -> None:
        """It moves into the decode batch, as its last row."""

    def decode(self, inputs: mx.array, *, known: bool, greedy: bool) -> mx.array:
        """The batch is about to be evaluated; returns the inputs (B,) as every rank sees them.

        `known`: they are what was drawn in the last step, which was `greedy`: every row's token is
        the most likely one, so that each rank can draw for itself.
        """

    def drop(self, key: Key) -> None:
        """Its caches are gone, wherever they were."""

    def reset(self) -> None:
        """All sequences are gone."""

    def clear_pool(self) -> None:
        """What was freed is given back to the system."""

    # -- prefixes: the leader's index decides, every rank keeps its part of what is stored

    def offer(self, key: Key) -> None:
        """What its caches hold now may be kept. A sequence that was dropped last needs no offer."""

    def keep(self, number: int, part: CachedPart) -> None:
        """This part of what was offered last gets a number."""

    def shorten(self, number: int, kept: int, length: int, shorter_by: int) -> None:
        """The first `length` tokens of `kept` get a number of their own."""

    def forget(self, number: int) -> None:
        """Nobody will ask for it again."""

    def give(self, kept: Ids[tuple[int, int]], length: int) -> None:
        """Caches of `length` tokens are made of these numbers, each shorter by so many tokens."""

    def resume(self, key: Key) -> None:
        """A sequence got the caches that were made last."""


class SingleProcess:
    """A model that is in one process."""

    def open(self, key: Key) -> None: ...

    def prefill(self, key: Key, ids: Ids[int]) -> None: ...

    def join(self, key: Key) -> None: ...

    def decode(self, inputs: mx.array, *, known: bool, greedy: bool) -> mx.array:
        return inputs

    def drop(self, key: Key) -> None: ...

    def reset(self) -> None: ...

    def clear_pool(self) -> None: ...

    def offer(self, key: Key) -> None: ...

    def keep(self, number: int, part: CachedPart) -> None: ...

    def shorten(self, number: int, kept: int, length: int, shorter_by: int) -> None: ...

    def forget(self, number: int) -> None: ...

    def give(self, kept: Ids[tuple[int, int]], length: int) -> None: ...

    def resume(self, key: Key) -> None: ...


SINGLE_PROCESS = SingleProcess()
