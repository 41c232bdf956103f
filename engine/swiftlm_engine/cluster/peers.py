"""What the runner tells the other ranks of its group before it touches caches or model.

Every rank holds its share of the weights and of each sequence's KV. A call here makes the others
do the same thing to theirs; between the calls they decide nothing.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids
from typing import Protocol

import mlx.core as mx

Key = tuple[str, int]  # of a sequence: request and choice


class Peers(Protocol):
    def open(self, key: Key) -> None:
        """A sequence got empty caches."""

    def prefill(self, key: Key, ids: Ids[int]) -> None:
        """Its next prompt tokens are about to be evaluated."""

    def join(self, key: Key) -> None:
        """It moves into the decode batch, as its last row."""

    def decode(self, inputs: mx.array) -> mx.array:
        """The batch is about to be evaluated; returns the inputs (B,) as every rank sees them."""

    def drop(self, key: Key) -> None:
        """Its caches are gone, wherever they were."""

    def reset(self) -> None:
        """All sequences are gone."""


class Alone:
    """A model that is in one process."""

    def open(self, key: Key) -> None: ...

    def prefill(self, key: Key, ids: Ids[int]) -> None: ...

    def join(self, key: Key) -> None: ...

    def decode(self, inputs: mx.array) -> mx.array:
        return inputs

    def drop(self, key: Key) -> None: ...

    def reset(self) -> None: ...


ALONE = Alone()
