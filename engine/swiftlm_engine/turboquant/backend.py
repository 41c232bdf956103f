"""Who computes attention over compressed KV: plain MLX ops, or the kernels of the GPU at hand."""

from typing import Protocol

import mlx.core as mx

from swiftlm_engine.turboquant import attention
from swiftlm_engine.turboquant.formats import KVFormat
from swiftlm_engine.turboquant.packing import NibbleOrder
from swiftlm_engine.turboquant.sequence import SequenceKV


class Backend(Protocol):
    def attend(self, kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
        """(Hq, T, d) queries of the newest T tokens -> (Hq, T, d). Lazy."""

    def key_order(self, format: KVFormat, head_dim: int) -> NibbleOrder:
        """The nibble order it reads keys in."""


class PlainBackend:
    """Plain ops everywhere; ordinary attention while nothing is compressed yet."""

    def attend(self, kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
        if kv.num_pages:
            return attention.attend(kv, queries, scale)
        return exact_attention(kv, queries, scale)

    def key_order(self, format: KVFormat, head_dim: int) -> NibbleOrder:
        return NibbleOrder.OFFSET


def exact_attention(kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
    keys, values = kv.keys_and_values()
    mask = "causal" if queries.shape[1] > 1 else None
    return mx.fast.scaled_dot_product_attention(
        queries[None], keys[None], values[None], scale=scale, mask=mask
    )[0]


def default_backend() -> Backend:
    return PlainBackend()
