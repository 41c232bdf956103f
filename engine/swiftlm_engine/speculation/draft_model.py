"""A small model of the same vocabulary guesses what the large one will say."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from swiftlm_engine.prefix.snapshot import LeafKind, kind_of, leaves_of

Caches = list[Any]


class DraftModelDrafter:
    """Of one sequence; keeps the draft model's KV in step with the sequence's tokens."""

    def __init__(self, model: Any, make_caches: Callable[[], Caches], chunk: int = 512) -> None:
        self._model = model
        self._caches = make_caches()
        self._chunk = chunk
        self._ids: list[int] = []  # tokens of the sequence
        self._num_cached = 0  # of those, in the caches

    def extend(self, ids: list[int]) -> None:
        self._ids += ids

    def propose(self, max_tokens: int) -> list[int]:
        """Greedy guesses, evaluated."""
        token = self._catch_up()
        guesses = []
        # The guesses are fed, but they are not the sequence's tokens yet.
        leaves = leaves_of(self._caches)
        before = [
            None if kind_of(leaf) is LeafKind.TRUNK else copy.deepcopy(leaf) for leaf in leaves
        ]
        for _ in range(max_tokens):
            guesses.append(token)
            logits = self._model(token[None], cache=self._caches)[:, -1, :]
            token = mx.argmax(logits, axis=-1)
        ids = mx.concatenate(guesses).tolist() if guesses else []
        for leaf, kept in zip(leaves, before, strict=True):
            if kept is None:
                leaf.trim(len(ids))
            else:
                leaf.__dict__.update(vars(kept))
        return ids

    def _catch_up(self) -> mx.array:
        """Feeds what the caches lack; returns the first guess (1,)."""
        missing = self._ids[self._num_cached :]
        logits = None
        for start in range(0, len(missing), self._chunk):
            piece = missing[start : start + self._chunk]
            logits = self._model(mx.array([piece]), cache=self._caches)[:, -1, :]
            mx.eval([c.state for c in self._caches])
        self._num_cached = len(self._ids)
        assert logits is not None, "propose without a new token"
        return mx.argmax(logits, axis=-1)
