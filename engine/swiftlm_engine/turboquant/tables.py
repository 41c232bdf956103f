"""Quantiser tables and sign arrays. Pure numbers: numpy only.

The rotated coordinates of a vector of length sqrt(d) are close to N(0, 1), so one table serves
every head size (at most 0.43 % worse than the table of the exact sphere law at d = 64).
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from swiftlm_engine.turboquant.formats import KeyCode

Floats = npt.NDArray[np.float32]

# Lloyd-Max centroids of N(0, 1), positive half.
_LLOYD_MAX_3 = (0.245094, 0.756005, 1.343909, 2.151946)
_LLOYD_MAX_4 = (0.128395, 0.388048, 0.656759, 0.942340, 1.256231, 1.618046, 2.069017, 2.732590)
# Means of N(0, 1) over the halves that each 3-bit centroid cuts its own cell into.
_SIGN_3_1 = (0.1219, 0.3708, 0.6249, 0.8965, 1.1884, 1.5251, 1.9238, 2.5085)

UNIFORM_8_LIMIT = 127.0  # codes are -127..127, stored with 128 added


@dataclass(frozen=True, slots=True)
class Quantiser:
    """A scalar quantiser: code = number of boundaries below y, value = levels[code]."""

    boundaries: Floats
    levels: Floats


def _symmetric(half: tuple[float, ...] | Floats) -> Floats:
    positive = np.asarray(half, np.float32)
    return np.concatenate([-positive[::-1], positive])


def _midpoints(levels: Floats) -> Floats:
    return ((levels[1:] + levels[:-1]) / 2).astype(np.float32)


def eight_bit_steps(half: tuple[float, ...]) -> tuple[list[int], float]:
    """(m, step) with level = (m + 0.5) * step and m in 0..127: what 8-bit matrix units need."""
    step = half[-1] / 127.5
    return [min(127, round(level / step - 0.5)) for level in half], step


def _on_eight_bits(half: tuple[float, ...]) -> Floats:
    # Costs 0.4 % of the error at four bits and makes integer scores exact.
    steps, step = eight_bit_steps(half)
    return np.asarray([(m + 0.5) * step for m in steps], np.float32)


def key_half_levels(code: KeyCode) -> tuple[float, ...]:
    """The eight positive levels behind a 4-bit key code, before they are put on eight bits."""
    return _SIGN_3_1 if code is KeyCode.SIGN_3_1 else _LLOYD_MAX_4


@cache
def key_quantiser(code: KeyCode) -> Quantiser:
    """The table of a key code; for `QJL_3_1` that of its 3-bit index."""
    if code is KeyCode.QJL_3_1:
        levels = _symmetric(_LLOYD_MAX_3)
        return Quantiser(_midpoints(levels), levels)
    levels = _symmetric(_on_eight_bits(key_half_levels(code)))
    if code is KeyCode.LLOYD_MAX_4:
        return Quantiser(_midpoints(levels), levels)
    # The sign of the 3-bit residual asks on which side of its centroid y lies, so the
    # boundaries are those of the 3-bit code with its centroids between them.
    coarse = _symmetric(_LLOYD_MAX_3)
    return Quantiser(np.sort(np.concatenate([coarse, _midpoints(coarse)])), levels)


@cache
def value_quantiser(bits: int) -> Quantiser:
    levels = _symmetric(_LLOYD_MAX_3 if bits == 3 else _LLOYD_MAX_4)
    levels = levels.astype(np.float16).astype(np.float32)  # matrix units read them as fp16
    return Quantiser(_midpoints(levels), levels)


@cache
def sign_arrays(head_dim: int, seed: int = 42) -> Floats:
    """(2, d) of +-1: the published arrays (d = 128, and their start for less), own draws above."""
    draws = np.random.default_rng(seed)
    size = max(128, head_dim)
    return np.stack([draws.choice([-1, 1], size)[:head_dim] for _ in range(2)]).astype(np.float32)


@cache
def dense_rotation(head_dim: int, seed: int = 42) -> Floats:
    """(d, d) orthogonal, for head sizes without a symmetric Hadamard matrix."""
    gaussian = np.random.default_rng(seed).standard_normal((head_dim, head_dim))
    q, r = np.linalg.qr(gaussian)
    return (q * np.sign(np.diag(r))).astype(np.float32)
