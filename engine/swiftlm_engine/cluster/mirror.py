"""One follower's share of every sequence: it does what the leader's step records say.

It must evaluate what the leader's runner evaluates, in the same order: each forward pass holds
collective operations, and a rank that runs them in another order adds up the wrong arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from swiftlm_engine.brain.plan.share import Split
from swiftlm_engine.cluster.peers import Key
from swiftlm_engine.cluster.shares import Place
from swiftlm_engine.row_caches import Caches, RowCaches


class Mirror:
    def __init__(self, model: Any, make_caches: Callable[[], Caches], place: Place) -> None:
        self._model = model
        self._make_caches = make_caches
        self._place = place
        self._prefilling: dict[Key, Caches] = {}
        self._keys: list[Key] = []  # of the decode batch, in its rows' order
        self._caches = RowCaches()

    def open(self, key: Key) -> None:
        self._prefilling[key] = self._make_caches()

    def prefill(self, key: Key, ids: list[int]) -> None:
        caches = self._prefilling[key]
        self._model(mx.array([ids], dtype=mx.int32), cache=caches)
        mx.eval([c.state for c in caches])

    def join(self, key: Key) -> None:
        self._caches.add(self._prefilling.pop(key))
        self._keys.append(key)

    def decode(self) -> None:
        """Only the leader knows the tokens: this rank adds zeros to them, or needs none."""
        inputs = mx.zeros((len(self._keys),), dtype=mx.int32)
        if self._place.share.split is Split.TENSOR:
            inputs = mx.distributed.all_sum(inputs, group=self._place.ring)
        mx.async_eval(self._caches.forward(self._model, inputs))

    def drop(self, key: Key) -> None:
        if self._prefilling.pop(key, None) is None:
            at = self._keys.index(key)
            self._caches.remove(at)
            del self._keys[at]

    def reset(self) -> None:
        self._prefilling.clear()
        self._keys.clear()
        self._caches.clear()
        mx.clear_cache()
