"""Codes to 32-bit words and back, in plain MLX ops. All results are lazy.

Keys, per page:    (..., W, 64) words, token fastest, so that lane = token reads 128 bytes in a row.
                   4 bits: word w holds dims 8w..8w+7;  8 bits: word w holds dims 4w..4w+3.
Values, per page:  (..., 8 octets, words): per 8 tokens first the plane of the low two bits, then
                   the plane of the high bits; no code straddles a word. A unit is 4 dims
                   (A B | C D) x 8 tokens. A two-bit word holds token t of A at bit 2t and of B at
                   16 + 2t. The one-bit word gives each pair of tokens a nibble: 2 bits of A (or
                   B), 2 of C (or D).
"""

from enum import IntEnum
from functools import cache

import mlx.core as mx
import numpy as np

from swiftlm_engine.turboquant.formats import PAGE_TOKENS

OCTETS = PAGE_TOKENS // 8


class NibbleOrder(IntEnum):
    """Where the bits of a 4-bit key code lie inside its word; a permutation, nothing else."""

    OFFSET = 0  # nibble i is the code of dim i
    SIGN = 1  # nibble i: magnitude in bits 0-2; signs moved so that one byte permute spreads four


_NIBBLE = np.arange(0, 32, 4, dtype=np.uint32)
_BYTE = np.arange(0, 32, 8, dtype=np.uint32)
# Bit of the sign of dim i: 7, 15, 23, 31 for the low four dims, 3, 11, 19, 27 for the others.
_SIGN_BIT = np.array([8 * i + 7 if i < 4 else 8 * (i - 4) + 3 for i in range(8)], np.uint32)
# [which of the pair][token]
_TWO_BIT = np.array([[2 * t + 16 * w for t in range(8)] for w in range(2)], np.uint32)
# [half AB or CD][which of the pair][token]: nibble 4w + t/2 holds tokens t, t+1 of both halves
_ONE_BIT = np.array(
    [
        [[4 * (4 * w + t // 2) + 2 * h + t % 2 for t in range(8)] for w in range(2)]
        for h in range(2)
    ],
    np.uint32,
)


@cache
def _shifts(name: str) -> mx.array:
    tables = {"nibble": _NIBBLE, "byte": _BYTE, "sign": _SIGN_BIT, "two": _TWO_BIT, "one": _ONE_BIT}
    return mx.array(tables[name])


def pack_keys(codes: mx.array, bits: int, order: NibbleOrder = NibbleOrder.OFFSET) -> mx.array:
    """(..., T, d) codes -> (..., T/64, W, 64) words."""
    *lead, tokens, dim = codes.shape
    per_word = 32 // bits
    codes = codes.reshape(*lead, tokens // PAGE_TOKENS, PAGE_TOKENS, dim // per_word, per_word)
    if bits == 8:
        placed = codes << _shifts("byte")
    elif order is NibbleOrder.OFFSET:
        placed = codes << _shifts("nibble")
    else:
        negative = (codes < 8).astype(mx.uint32)
        magnitude = mx.where(codes < 8, 7 - codes, codes - 8)
        placed = (magnitude << _shifts("nibble")) | (negative << _shifts("sign"))
    words = mx.sum(placed, -1).astype(mx.uint32)
    return mx.contiguous(mx.swapaxes(words, -1, -2))


def unpack_keys(words: mx.array, bits: int, order: NibbleOrder = NibbleOrder.OFFSET) -> mx.array:
    """(..., P, W, 64) words -> (..., P*64, d) codes."""
    *lead, pages, width, _ = words.shape
    words = mx.swapaxes(words, -1, -2)[..., None]
    if bits == 8:
        codes = (words >> _shifts("byte")) & 255
    elif order is NibbleOrder.OFFSET:
        codes = (words >> _shifts("nibble")) & 15
    else:
        magnitude = (words >> _shifts("nibble")) & 7
        negative = (words >> _shifts("sign")) & 1
        codes = mx.where(negative == 1, 7 - magnitude, 8 + magnitude)
    return codes.reshape(*lead, pages * PAGE_TOKENS, width * (32 // bits))


def reorder_keys(words: mx.array, source: NibbleOrder, target: NibbleOrder) -> mx.array:
    """The same 4-bit codes in another nibble order."""
    return words if source == target else pack_keys(unpack_keys(words, 4, source), 4, target)


def pack_values(codes: mx.array, bits: int) -> mx.array:
    """(..., T, d) codes -> (..., T/64, 8, d/2 + d/4 or d/2) words."""
    *lead, tokens, dim = codes.shape
    pages = tokens // PAGE_TOKENS
    # octet, token, unit, half, which -> octet, unit, half, which, token
    codes = codes.reshape(*lead, pages, OCTETS, 8, dim // 4, 2, 2)
    codes = mx.moveaxis(codes, -4, -1)
    planes = [_two_bit_plane(codes & 3)]
    planes.append(_one_bit_plane(codes >> 2) if bits == 3 else _two_bit_plane(codes >> 2))
    return mx.contiguous(mx.concatenate(planes, -1))


def unpack_values(words: mx.array, head_dim: int, bits: int) -> mx.array:
    """(..., P, 8, words) -> (..., P*64, d) codes."""
    *lead, pages, _, _ = words.shape
    units = (*lead, pages, OCTETS, head_dim // 4)
    low, high = words[..., : head_dim // 2], words[..., head_dim // 2 :]
    codes = (low.reshape(*units, 2, 1, 1) >> _shifts("two")) & 3
    if bits == 3:
        codes = codes | (((high.reshape(*units, 1, 1, 1) >> _shifts("one")) & 1) << 2)
    else:
        codes = codes | (((high.reshape(*units, 2, 1, 1) >> _shifts("two")) & 3) << 2)
    return mx.moveaxis(codes, -1, -4).reshape(*lead, pages * PAGE_TOKENS, head_dim)


def _two_bit_plane(codes: mx.array) -> mx.array:
    words = mx.sum((codes << _shifts("two")).flatten(-2), -1).astype(mx.uint32)
    return words.flatten(-2)


def _one_bit_plane(codes: mx.array) -> mx.array:
    return mx.sum((codes << _shifts("one")).flatten(-3), -1).astype(mx.uint32)
