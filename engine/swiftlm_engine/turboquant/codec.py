"""The codec in plain MLX ops: the oracle of the kernels and the path of the CPU back end.

Encode (float32): y = R(x) * sqrt(d) / |x|, code = boundaries below y, g = |x| / |levels[code]| (the
norm that makes the decoded vector as long as x). Decode: R^-1(levels[code] * g). What is not finite
or does not fit fp16 is clamped on the way in, so nothing here makes a NaN. All results are lazy.
"""

import math
from dataclasses import dataclass
from functools import cache

import mlx.core as mx
import numpy as np

from swiftlm_engine.turboquant import packing
from swiftlm_engine.turboquant.formats import PAGE_TOKENS, KeyCode, KVFormat
from swiftlm_engine.turboquant.packing import NibbleOrder
from swiftlm_engine.turboquant.rotation import QJL_SEED, Rotation, rotation
from swiftlm_engine.turboquant.tables import UNIFORM_8_LIMIT, key_quantiser, value_quantiser

FP16_MAX = 65504.0
_TINY = 1e-20
# Least-squares scale of a sign of a rotated residual of norm 1: sqrt(pi/2)/sqrt(d) * 2/pi.
_QJL_SHRINK = math.sqrt(math.pi / 2) * 2 / math.pi


@dataclass(frozen=True, slots=True)
class Pages:
    """Compressed tokens of one layer of one sequence: whole pages, heads first."""

    key_words: mx.array  # (H, P, W, 64) uint32
    key_scales: mx.array  # (H, P, S, 64) fp16, S = 1 or 2: norm, residual norm
    value_words: mx.array  # (H, P, 8, words) uint32
    value_scales: mx.array  # (H, P, 64) fp16

    def arrays(self) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        return self.key_words, self.key_scales, self.value_words, self.value_scales


def sanitise(x: mx.array) -> mx.array:
    """float32, NaN as zero, everything else within fp16."""
    x = x.astype(mx.float32)
    return mx.clip(mx.where(mx.isnan(x), 0.0, x), -FP16_MAX, FP16_MAX)


class Codec:
    """One format for one head size. Stateless; shared by every cache of that kind."""

    __slots__ = ("format", "head_dim", "order", "rotation", "second_rotation")

    def __init__(
        self, format: KVFormat, head_dim: int, order: NibbleOrder = NibbleOrder.OFFSET
    ) -> None:
        self.format = format
        self.head_dim = head_dim
        self.order = order
        self.rotation: Rotation = rotation(head_dim)
        self.second_rotation: Rotation = rotation(head_dim, QJL_SEED)  # of the QJL code alone

    def encode(self, keys: mx.array, values: mx.array) -> Pages:
        """(H, T, d) smoothed keys and values, T a multiple of 64 -> pages."""
        heads, tokens, _ = keys.shape
        pages = tokens // PAGE_TOKENS
        key_codes, scalars = self.encode_keys(keys)
        value_codes, value_norms = self.encode_values(values)
        scales = mx.stack([s.reshape(heads, pages, PAGE_TOKENS) for s in scalars], axis=2)
        return Pages(
            packing.pack_keys(key_codes, self.format.key_bits, self.order),
            scales,
            packing.pack_values(value_codes, self.format.value_bits),
            value_norms.reshape(heads, pages, PAGE_TOKENS),
        )

    def decode_keys(self, pages: Pages) -> mx.array:
        """Pages -> (H, P*64, d) float32 keys in the rotated space."""
        codes = packing.unpack_keys(pages.key_words, self.format.key_bits, self.order)
        scales = [_per_token(pages.key_scales[:, :, i]) for i in range(self.format.key_scalars)]
        return self.restore_keys(codes, scales)

    def decode_values(self, pages: Pages) -> mx.array:
        """Pages -> (H, P*64, d) float32 values in the rotated space."""
        codes = packing.unpack_values(pages.value_words, self.head_dim, self.format.value_bits)
        levels = mx.take(_levels(value_quantiser(self.format.value_bits).levels), codes)
        return levels * _per_token(pages.value_scales)

    def encode_keys(self, keys: mx.array) -> tuple[mx.array, list[mx.array]]:
        """(..., T, d) -> codes (..., T, d) uint32 and the fp16 scalars of each token."""
        norm, y = self._normal(sanitise(keys))
        code = self.format.key_code
        if code is KeyCode.UNIFORM_8:
            return _uniform_8(norm, y)
        quantiser = key_quantiser(code)
        index = _quantise(y, quantiser.boundaries)
        if code is KeyCode.QJL_3_1:
            return self._encode_qjl(norm, y, index)
        levels = mx.take(_levels(quantiser.levels), index)
        scale = norm / mx.maximum(_norm(levels), _TINY)
        if self.format.key_scalars == 1:
            return index, [_scalar(scale)]
        # Kept so that the record is the published 68 bytes; the decoder does not need it.
        coarse = mx.take(_levels(key_quantiser(KeyCode.QJL_3_1).levels), index >> 1)
        return index, [_scalar(scale), _scalar(norm * _norm(y - coarse) / math.sqrt(self.head_dim))]

    def restore_keys(self, codes: mx.array, scales: list[mx.array]) -> mx.array:
        """Codes (..., T, d) and scalars (..., T, 1) -> keys in the rotated space."""
        code = self.format.key_code
        if code is KeyCode.UNIFORM_8:
            return (codes.astype(mx.float32) - 128.0) * scales[0]
        levels = _levels(key_quantiser(code).levels)
        if code is not KeyCode.QJL_3_1:
            return mx.take(levels, codes) * scales[0]
        signs = (codes & 1).astype(mx.float32) * 2 - 1
        missed = self.second_rotation.inverse(signs) * (_QJL_SHRINK / math.sqrt(self.head_dim))
        return mx.take(levels, codes >> 1) * scales[0] + missed * scales[1]

    def encode_values(self, values: mx.array) -> tuple[mx.array, mx.array]:
        norm, y = self._normal(sanitise(values))
        quantiser = value_quantiser(self.format.value_bits)
        codes = _quantise(y, quantiser.boundaries)
        levels = mx.take(_levels(quantiser.levels), codes)
        return codes, _scalar(norm / mx.maximum(_norm(levels), _TINY))

    def _normal(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """|x| (..., T, 1) and the rotated vector at length sqrt(d)."""
        # Scaled by the largest coordinate first: squares of 1e5 and of 1e-30 are both in range.
        largest = mx.maximum(mx.max(mx.abs(x), -1, keepdims=True), _TINY)
        unit = x / largest
        norm = _norm(unit)
        y = self.rotation.forward(unit) * (math.sqrt(self.head_dim) / mx.maximum(norm, _TINY))
        return norm * largest, y

    def _encode_qjl(
        self, norm: mx.array, y: mx.array, index: mx.array
    ) -> tuple[mx.array, list[mx.array]]:
        levels = mx.take(_levels(key_quantiser(KeyCode.QJL_3_1).levels), index)
        residual = y - levels
        positive = (self.second_rotation.forward(residual) >= 0).astype(mx.uint32)
        unit = norm / math.sqrt(self.head_dim)
        scales = [_scalar(unit), _scalar(unit * _norm(residual))]
        return index * 2 + positive, scales


@cache
def codec(format: KVFormat, head_dim: int, order: NibbleOrder = NibbleOrder.OFFSET) -> Codec:
    return Codec(format, head_dim, order)


def _levels(table: np.ndarray) -> mx.array:
    return mx.array(table)


def _norm(x: mx.array) -> mx.array:
    return mx.sqrt(mx.sum(x * x, -1, keepdims=True))


def _scalar(x: mx.array) -> mx.array:
    return mx.minimum(x, FP16_MAX)[..., 0].astype(mx.float16)


def _per_token(scales: mx.array) -> mx.array:
    return scales.astype(mx.float32).reshape(scales.shape[0], -1, 1)


def _quantise(y: mx.array, boundaries: np.ndarray) -> mx.array:
    index = mx.zeros(y.shape, mx.uint32)
    for boundary in boundaries.tolist():
        index = index + (y > boundary).astype(mx.uint32)
    return index


def _uniform_8(norm: mx.array, y: mx.array) -> tuple[mx.array, list[mx.array]]:
    largest = mx.maximum(mx.max(mx.abs(y), -1, keepdims=True), _TINY)
    codes = (mx.round(y * (UNIFORM_8_LIMIT / largest)) + 128.0).astype(mx.uint32)
    return codes, [_scalar(norm * largest / (UNIFORM_8_LIMIT * math.sqrt(y.shape[-1])))]
