"""Who computes attention over compressed KV: plain MLX ops, or the kernels of the GPU at hand."""

from functools import cache
from typing import Protocol

import mlx.core as mx

from swiftlm_engine.turboquant import attention
from swiftlm_engine.turboquant.attention import exact_attention
from swiftlm_engine.turboquant.codec import Pages
from swiftlm_engine.turboquant.encoder import encode_plain
from swiftlm_engine.turboquant.formats import KVFormat
from swiftlm_engine.turboquant.packing import NibbleOrder
from swiftlm_engine.turboquant.sequence import SequenceKV


class Backend(Protocol):
    def attend(self, kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
        """(..., Hq, T, d) queries, leading ones only, of the newest T tokens -> the same. Lazy."""

    def encode(self, kv: SequenceKV, count: int) -> Pages:
        """The oldest `count` pages' worth of tokens behind the sinks. Lazy."""

    def key_order(self, format: KVFormat, head_dim: int) -> NibbleOrder:
        """The nibble order it reads keys in."""


class PlainBackend:
    """Plain ops everywhere; ordinary attention while nothing is compressed yet."""

    def attend(self, kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
        if kv.num_pages:
            return attention.attend(kv, queries, scale)
        return exact_attention(kv, queries, scale)

    def encode(self, kv: SequenceKV, count: int) -> Pages:
        return encode_plain(kv, count)

    def key_order(self, format: KVFormat, head_dim: int) -> NibbleOrder:
        return NibbleOrder.OFFSET


class DeviceBackend:
    """The kernels where the GPU computes, plain ops in layers that were put on the CPU."""

    def __init__(self, kernels: Backend) -> None:
        self.key_order = kernels.key_order  # plain ops read any order
        self._kernels = kernels
        self._plain = PlainBackend()

    def attend(self, kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
        return self._here().attend(kv, queries, scale)

    def encode(self, kv: SequenceKV, count: int) -> Pages:
        return self._here().encode(kv, count)

    def _here(self) -> Backend:
        on_cpu = mx.default_device().type == mx.DeviceType.cpu
        return self._plain if on_cpu else self._kernels


@cache
def default_backend() -> Backend:
    """The kernels of the GPU that MLX uses, plain ops on the CPU; one, as it holds the kernels."""
    if mx.default_device().type != mx.DeviceType.gpu:
        return PlainBackend()
    from swiftlm_engine.turboquant.kernels import launch  # it builds on this module

    kernels = launch.metal_backend() if mx.metal.is_available() else launch.cuda_backend()
    return DeviceBackend(kernels)
