"""KV caches of others, to measure beside ours: mlx-lm's `kv_bits`, and the record of the ancestor.

The ancestor keeps 3-bit indices in groups of 128, and for keys the signs of a second rotation of
what they missed, scaled for a Gaussian projection where its own is orthonormal: sqrt(d) too small.
Here every token is encoded and decoded as it comes; its window of 256 exact tokens is left out,
and so is the context that it dropped (docs/turboquant.md).
"""

import math
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache

from swiftlm_engine.turboquant.rotation import QJL_SEED, rotation
from swiftlm_engine.turboquant.tables import value_quantiser

PEERS = ("affine8", "affine4", "ancestor")
GROUP = 128


def peer_caches(model: nn.Module, name: str) -> list[Any]:
    return [peer_cache(name) if type(c) is KVCache else c for c in make_prompt_cache(model)]


def peer_cache(name: str) -> KVCache | QuantizedKVCache:
    if name == "ancestor":
        return AncestorKVCache()
    return QuantizedKVCache(group_size=64, bits=int(name.removeprefix("affine")))


class AncestorKVCache(KVCache):
    """Holds what the ancestor would decode. Says nothing about its speed or memory."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return super().update_and_fetch(restored(keys, signs=True), restored(values, signs=False))


def restored(x: mx.array, signs: bool) -> mx.array:
    """(B, H, T, d) through the record and back."""
    size = min(x.shape[-1], GROUP)
    groups = x.astype(mx.float32).reshape(*x.shape[:-1], -1, size)
    norm = mx.sqrt(mx.sum(groups * groups, -1, keepdims=True))
    turn = rotation(size)
    y = turn.forward(groups) * (math.sqrt(size) / mx.maximum(norm, 1e-20))
    table = value_quantiser(3)
    index = mx.sum(y[..., None] > mx.array(table.boundaries), -1)
    levels = mx.take(mx.array(table.levels), index)
    if signs:
        second = rotation(size, QJL_SEED)
        residual = y - levels
        length = mx.sqrt(mx.sum(residual * residual, -1, keepdims=True))
        bits = mx.where(second.forward(residual) >= 0, 1.0, -1.0)
        levels = levels + second.inverse(bits) * length * (math.sqrt(math.pi / 2) / size)
    return (turn.inverse(levels) * norm / math.sqrt(size)).reshape(x.shape).astype(x.dtype)


def record_bytes(dim: int) -> float:
    """Of one key and one value: 68 and 50 bytes per 128 dimensions."""
    return dim / GROUP * (68 + 50)
