"""KV caches of others, to measure beside ours: mlx-lm's `kv_bits`, and the record of the ancestor.

Every token is encoded and decoded as it comes in, and attention is ordinary: this tells what a
format costs in fidelity, not its speed or memory. The ancestor keeps 3-bit indices in groups of
128, and for keys the signs of a second rotation of what they missed, scaled for a Gaussian
projection where its own is orthonormal: sqrt(d) too small. Its window of 256 exact tokens is left
out here, and so is the context that it dropped (docs/turboquant.md).
"""

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, make_prompt_cache

from swiftlm_engine.turboquant.rotation import QJL_SEED, rotation
from swiftlm_engine.turboquant.tables import value_quantiser

GROUP = 128
AFFINE_GROUP = 64

Codec = Callable[[mx.array], mx.array]  # there and back


class PeerKVCache(KVCache):
    """Holds what the peer would decode."""

    def __init__(self, keys: Codec, values: Codec, bits_per_dim: float) -> None:
        super().__init__()
        self._keys, self._values, self.bits_per_dim = keys, values, bits_per_dim

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return super().update_and_fetch(self._keys(keys), self._values(values))

    def share_of_fp16(self) -> float:
        return self.bits_per_dim / 16


def affine(bits: int) -> PeerKVCache:
    """mlx-lm's `kv_bits` with its group of 64 and two fp16 numbers per group."""

    def restore(x: mx.array) -> mx.array:
        packed = mx.quantize(x, group_size=AFFINE_GROUP, bits=bits)
        return mx.dequantize(*packed, group_size=AFFINE_GROUP, bits=bits).astype(x.dtype)

    return PeerKVCache(restore, restore, bits + 32 / AFFINE_GROUP)


def ancestor() -> PeerKVCache:
    """68 bytes per 128 dimensions of a key, 50 of a value."""
    return PeerKVCache(
        lambda x: restored(x, signs=True),
        lambda x: restored(x, signs=False),
        (68 + 50) * 8 / (2 * GROUP),
    )


PEERS: dict[str, Callable[[], PeerKVCache]] = {
    "affine8": lambda: affine(8),
    "affine4": lambda: affine(4),
    "ancestor": ancestor,
}


def peer_caches(model: nn.Module, name: str) -> list[Any]:
    return [PEERS[name]() if type(c) is KVCache else c for c in make_prompt_cache(model)]


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
