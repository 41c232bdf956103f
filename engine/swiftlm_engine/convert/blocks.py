"""GGUF's quantised blocks in MLX's terms: codes, scales and biases per group of 32 weights.

MLX computes `w = scale * code + bias`. Every layout here is the same formula in another order of
bits, so nothing is rounded: the arrays are exact in float32. Other types are quantised a second
time (`quantise`), which costs a little; the caller reports how much.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

GROUP = 32
_ONE, _FOUR = np.uint8(1), np.uint8(4)  # typed, so that shifts stay bytes

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Affine:
    """One matrix as MLX holds it, before packing."""

    bits: int
    codes: NDArray[np.uint8]  # (rows, columns)
    scales: Floats  # (rows, columns / 32)
    biases: Floats  # (rows, columns / 32)

    def dequantised(self) -> Floats:
        grouped = self.codes.reshape(*self.scales.shape, GROUP).astype(np.float32)
        values = grouped * self.scales[..., None] + self.biases[..., None]
        return values.reshape(self.codes.shape)


def pack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint32]:
    """(rows, columns) codes as MLX's little-endian stream of bits, (rows, columns * bits / 32)."""
    rows = codes.shape[0]
    if bits == 8:
        stream = codes
    elif bits == 4:
        stream = codes[:, 0::2] | (codes[:, 1::2] << _FOUR)
    else:
        single = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little")
        stream = np.packbits(single.reshape(rows, -1), axis=-1, bitorder="little")
    return np.ascontiguousarray(stream).view("<u4")


def quantise(values: Floats, bits: int) -> Affine:
    """Round (rows, columns) to `bits` bits between each group's least and greatest weight."""
    rows, columns = values.shape
    groups = values.reshape(rows, columns // GROUP, GROUP)
    low, high = groups.min(axis=-1), groups.max(axis=-1)
    scales = (high - low) / np.float32(2**bits - 1)
    divisor = np.where(scales == 0, np.float32(1), scales)
    codes = np.rint((groups - low[..., None]) / divisor[..., None])
    codes = codes.clip(0, 2**bits - 1).astype(np.uint8)
    return Affine(bits, codes.reshape(rows, columns), scales, low)


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How one GGUF type keeps its blocks."""

    bits: int
    block_bytes: int
    read: Callable[[Bytes], Affine]

    def affine(self, rows: Bytes) -> Affine:
        """(rows, bytes per row) -> the matrix."""
        return self.read(rows.reshape(rows.shape[0], -1, self.block_bytes))


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of every block: (rows, blocks)."""
    pair = np.ascontiguousarray(blocks[..., at : at + 2])
    return pair.view("<f2")[..., 0].astype(np.float32)


def _nibbles(qs: Bytes) -> Bytes:
    """Byte i holds weight i in its low half and weight i + 16 in its high half."""
    return np.concatenate([qs & 15, qs >> 4], axis=-1)


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """The 32 high bits that a block of 5-bit weights keeps apart, as 0 or 16."""
    word = np.ascontiguousarray(blocks[..., at : at + 4])
    return np.unpackbits(word, axis=-1, bitorder="little") << _FOUR


def _matrix(bits: int, codes: Bytes, scales: Floats, biases: Floats) -> Affine:
    rows = codes.shape[0]
    flat = (rows, -1)
    return Affine(bits, codes.reshape(flat), scales.reshape(flat), biases.reshape(flat))


def _q4_0(blocks: Bytes) -> Affine:
    scale = _half(blocks, 0)
    return _matrix(4, _nibbles(blocks[..., 2:]), scale, scale * -8)


def _q4_1(blocks: Bytes) -> Affine:
    return _matrix(4, _nibbles(blocks[..., 4:]), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: Bytes) -> Affine:
    scale = _half(blocks, 0)
    codes = _nibbles(blocks[..., 6:]) | _fifth_bits(blocks, 2)
    return _matrix(5, codes, scale, scale * -16)


def _q5_1(blocks: Bytes) -> Affine:
    codes = _nibbles(blocks[..., 8:]) | _fifth_bits(blocks, 4)
    return _matrix(5, codes, _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: Bytes) -> Affine:
    scale = _half(blocks, 0)
    unsigned = np.ascontiguousarray(blocks[..., 2:]) ^ np.uint8(128)  # signed + 128
    return _matrix(8, unsigned, scale, scale * -128)


def _six_bit_pairs(packed: Bytes) -> tuple[Floats, Floats]:
    """The eight 6-bit scales and eight 6-bit minima in a K block's 12 bytes."""
    first, second, rest = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([first & 63, (rest & 15) | ((first >> 6) << 4)], axis=-1)
    minima = np.concatenate([second & 63, (rest >> 4) | ((second >> 6) << 4)], axis=-1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    scales, minima = _six_bit_pairs(blocks[..., 4:16])
    return _half(blocks, 0)[..., None] * scales, -(_half(blocks, 2)[..., None] * minima)


def _k_nibbles(qs: Bytes) -> Bytes:
    """128 bytes hold 4 x (32 low halves, then 32 high halves): (rows, blocks, 8, 32)."""
    runs = qs.reshape(*qs.shape[:-1], 4, 1, GROUP)
    both = np.concatenate([runs & 15, runs >> 4], axis=-2)
    return both.reshape(*qs.shape[:-1], 8, GROUP)


def _q4_k(blocks: Bytes) -> Affine:
    scales, biases = _k_scales(blocks)
    return _matrix(4, _k_nibbles(blocks[..., 16:]), scales, biases)


def _q5_k(blocks: Bytes) -> Affine:
    scales, biases = _k_scales(blocks)
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    fifth = ((blocks[..., None, 16:48] >> shifts) & _ONE) << _FOUR  # bit s belongs to sub-block s
    return _matrix(5, _k_nibbles(blocks[..., 48:]) | fifth, scales, biases)


EXACT: dict[Type, BlockLayout] = {
    Type.Q4_0: BlockLayout(4, 18, _q4_0),
    Type.Q4_1: BlockLayout(4, 20, _q4_1),
    Type.Q5_0: BlockLayout(5, 22, _q5_0),
    Type.Q5_1: BlockLayout(5, 24, _q5_1),
    Type.Q8_0: BlockLayout(8, 34, _q8_0),
    Type.Q4_K: BlockLayout(4, 144, _q4_k),
    Type.Q5_K: BlockLayout(5, 176, _q5_k),
}

DENSE = frozenset({Type.F32, Type.F16, Type.BF16, Type.F64})


def requantised_bits(kind: Type) -> int:
    """The width for a type with no exact twin: 8 for the 6-bit and wider ones, else 4."""
    return 8 if kind in (Type.Q6_K, Type.Q8_1, Type.Q8_K) else 4
