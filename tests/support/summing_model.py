"""A model that sums up what its caches hold: its next token says exactly which tokens they are.

Cheap enough for thousands of random timelines, and every kind of mlx-lm's caches has a layer. What
the true next token is, `next_token` says from the tokens alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, ChunkedKVCache, KVCache, RotatingKVCache

VOCABULARY = 97  # token 0 is padding
WINDOW = 8
CONV = 3
WIDTH = 64  # of keys: their bytes stand out from those of small things

Caches = list[Any]


@dataclass(frozen=True)
class SummingModel:
    """`layers` of "plain", "window", "chunk" and "state"."""

    layers: tuple[str, ...]

    def make_caches(self) -> Caches:
        return [_MAKERS[layer]() for layer in self.layers]

    def __call__(self, ids: mx.array, cache: Caches) -> mx.array:
        """Logits (B, T, V), of which only the last position means anything."""
        values = ids.astype(mx.float32)  # (B, T)
        total = mx.zeros((ids.shape[0],))
        for number, (layer, one) in enumerate(zip(self.layers, cache, strict=True), 1):
            total = total + number * _LAYERS[layer](values, one)
        target = 1 + (7 * total + values[:, -1]) % (VOCABULARY - 1)  # (B,)
        logits = -mx.square(mx.arange(VOCABULARY, dtype=mx.float32) - target[:, None])
        return mx.broadcast_to(logits[:, None], (*ids.shape, VOCABULARY))

    def next_token(self, known: list[int]) -> int:
        total = sum(n * _TRUE[layer](known) for n, layer in enumerate(self.layers, 1))
        return 1 + (7 * total + known[-1]) % (VOCABULARY - 1)

    def answer(self, prompt: list[int], count: int) -> list[int]:
        known = list(prompt)
        for _ in range(count):
            known.append(self.next_token(known))
        return known[len(prompt) :]


def _attend(values: mx.array, cache: Any) -> mx.array:
    keys = mx.broadcast_to(values[:, None, :, None], (values.shape[0], 1, values.shape[1], WIDTH))
    if isinstance(cache, ChunkedKVCache):
        cache.maybe_trim_front()
    held, _ = cache.update_and_fetch(keys, keys)
    return held[..., 0].sum(axis=(1, 2))


def _state(values: mx.array, cache: Any) -> mx.array:
    """All tokens in one number, and a view of the last few."""
    held, last = cache[0], cache[1]
    if held is None:
        held = mx.zeros((values.shape[0], WIDTH))
        last = mx.zeros((values.shape[0], CONV, WIDTH))
    wide = mx.broadcast_to(values[..., None], (*values.shape, WIDTH))
    cache[0] = held + wide.sum(axis=1)
    seen = mx.concatenate([last, wide], axis=1)
    cache[1] = seen[:, -CONV:]
    cache.advance(values.shape[1])
    return cache[0][:, 0] + 2 * cache[1][..., 0].sum(axis=1)


_MAKERS = {
    "plain": KVCache,
    "window": lambda: RotatingKVCache(max_size=WINDOW),
    "chunk": lambda: ChunkedKVCache(WINDOW),
    "state": lambda: ArraysCache(2),
}
_LAYERS = {"plain": _attend, "window": _attend, "chunk": _attend, "state": _state}
_TRUE = {
    "plain": sum,
    "window": lambda known: sum(known[-WINDOW:]),
    "state": lambda known: sum(known) + 2 * sum(known[-CONV:]),
}
