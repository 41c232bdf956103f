"""One follower's share of every sequence: it does what the leader's step records say.

It must evaluate what the leader's runner evaluates, in the same order: each forward pass holds
collective operations, and a rank that runs them in another order adds up the wrong arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from swiftlm_engine import turboquant
from swiftlm_engine.brain.plan.share import Split
from swiftlm_engine.brain.prefix_index import CachedPart
from swiftlm_engine.prefix.entries import KeptPrefixes
from swiftlm_engine.ranks import Key
from swiftlm_engine.run.malloc_trim import trim
from swiftlm_engine.run.row_caches import Caches, RowCaches
from swiftlm_engine.sampling.sampler import most_likely
from swiftlm_engine.split.shares import Place
from swiftlm_engine.turboquant import policy
from swiftlm_engine.turboquant.layer_support import Verdict


class Mirror:
    def __init__(self, model: Any, make_caches: Callable[[], Caches], place: Place) -> None:
        self._model = model
        self._make_caches = make_caches
        self._place = place
        self._prefilling: dict[Key, Caches] = {}
        self._keys: list[Key] = []  # of the decode batch, in its rows' order
        self._caches = RowCaches()
        self._drawn: mx.array | None = None  # (B,), by the last step if that was greedy
        self._prefixes = KeptPrefixes(make_caches)
        self._offered: Caches = []  # what may be kept
        self._made: Caches = []  # from what was kept

    def test(self, ids: list[int], verdict: Verdict, chunk: int) -> policy.MeasuredError:
        turboquant.install(self._model)
        return policy.measure(self._model, ids, verdict, chunk)

    def use(self, verdict: Verdict) -> None:
        """Before the first sequence."""
        turboquant.install(self._model)
        self._make_caches = lambda: turboquant.make_caches(self._model, "", verdict).caches
        self._prefixes = KeptPrefixes(self._make_caches)

    def open(self, key: Key) -> None:
        self._prefilling[key] = self._make_caches()

    def prefill(self, key: Key, ids: list[int]) -> None:
        self._offered = []
        caches = self._prefilling[key]
        self._model(mx.array([ids], dtype=mx.int32), cache=caches)
        mx.eval([c.state for c in caches])

    def join(self, key: Key) -> None:
        self._caches.add(self._prefilling.pop(key))
        self._keys.append(key)

    def decode(self, known: bool, greedy: bool) -> None:
        self._offered = []
        inputs = self._drawn if known else self._told_inputs()
        assert inputs is not None, "the leader says that this rank has drawn them"
        logits = self._caches.forward(self._model, inputs)
        self._drawn = most_likely(logits).astype(mx.int32) if greedy else None
        mx.async_eval(logits if self._drawn is None else self._drawn)

    def _told_inputs(self) -> mx.array:
        """Only the leader knows the tokens: this rank adds zeros to them, or needs none."""
        inputs = mx.zeros((len(self._keys),), dtype=mx.int32)
        if self._place.share.split is Split.TENSOR:
            inputs = mx.distributed.all_sum(inputs, group=self._place.ring)
        return inputs

    def drop(self, key: Key) -> None:
        if key in self._prefilling:
            self._offered = self._prefilling.pop(key)
        else:
            at = self._keys.index(key)
            self._offered = self._caches.remove(at)
            del self._keys[at]

    def reset(self) -> None:
        self._prefilling.clear()
        self._keys.clear()
        self._caches.clear()
        self._offered = []
        mx.clear_cache()

    def clear_pool(self) -> None:
        """Also what casting or a long prompt has left in the heap."""
        mx.clear_cache()
        trim()

    # -- prefixes

    def offer(self, key: Key) -> None:
        self._offered = self._prefilling[key]

    def keep(self, number: int, part: CachedPart) -> None:
        self._prefixes.keep(number, part, self._offered)

    def shorten(self, number: int, kept: int, length: int, shorter_by: int) -> None:
        self._prefixes.shorten(number, kept, length, shorter_by)

    def forget(self, number: int) -> None:
        self._prefixes.forget(number)

    def give(self, kept: list[tuple[int, int]], length: int) -> None:
        self._made = self._prefixes.give(kept, length)

    def resume(self, key: Key) -> None:
        self._prefilling[key], self._made = self._made, []
