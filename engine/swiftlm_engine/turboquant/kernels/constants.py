"""The numbers a kernel is compiled with, as #define lines and program-scope tables.

Tables and signs are part of the text on purpose: on CUDA an array that the host wrote is read over
the bus by every block, 16 us per call; a table in the text costs nothing.
"""

import math
from functools import cache

import numpy as np

from swiftlm_engine.turboquant.formats import KeyCode, KVFormat
from swiftlm_engine.turboquant.packing import NibbleOrder
from swiftlm_engine.turboquant.tables import (
    eight_bit_steps,
    key_half_levels,
    key_quantiser,
    sign_arrays,
    value_quantiser,
)


@cache
def constants(format: KVFormat, head_dim: int, scale: float, order: NibbleOrder) -> str:
    """Everything of one format, head size and softmax scale."""
    lines = {
        "D": str(head_dim),
        "ROW": str(head_dim + 2),
        "SCALE": _number(scale * math.log2(math.e)),
        "ROOT": _number(head_dim**-0.5),
        "KEY_BITS": str(format.key_bits),
        "KEY_SCALARS": str(format.key_scalars),
        "VALUE_BITS": str(format.value_bits),
        "ORDER": str(int(order)),
    }
    defines = "".join(f"#define {name} {value}\n" for name, value in lines.items())
    return defines + _tables(format) + _signs(head_dim)


def matrix_constants(format: KVFormat) -> str:
    """Byte tables for CUDA's byte permutes: key magnitudes as 8-bit levels, both as fp16."""
    steps, step = eight_bit_steps(key_half_levels(format.key_code))
    keys = [128 + m for m in steps]
    words = {"K_BYTES_0": _word(keys[:4]), "K_BYTES_1": _word(keys[4:]), "K_STEP": _number(step)}
    words |= _half_bytes("K", key_quantiser(format.key_code).levels[8:])
    words |= _half_bytes("V", value_quantiser(3).levels)
    return "".join(f"#define {name} {value}\n" for name, value in words.items())


def _half_bytes(name: str, levels: np.ndarray) -> dict[str, str]:
    """Eight levels as fp16, low and high bytes apart, four to a word."""
    numbers = levels.astype(np.float16).view(np.uint16).tolist()
    parts = {"LOW": [n & 255 for n in numbers], "HIGH": [n >> 8 for n in numbers]}
    return {
        f"{name}_{part}_{i}": _word(both[4 * i : 4 * i + 4])
        for part, both in parts.items()
        for i in (0, 1)
    }


def _tables(format: KVFormat) -> str:
    values = value_quantiser(format.value_bits)
    text = _table("V_LEVELS", values.levels) + _table("V_BOUNDS", values.boundaries)
    if format.key_code is KeyCode.UNIFORM_8:
        return text
    keys = key_quantiser(format.key_code)
    half = len(keys.boundaries) // 2
    text += _table("K_LEVELS", keys.levels) + _table("K_BOUNDS", keys.boundaries[half + 1 :])
    return text + _table("K_COARSE", key_quantiser(KeyCode.QJL_3_1).levels[4:])


def _signs(head_dim: int) -> str:
    if head_dim & (head_dim - 1):
        return "TQ_CONST u32 SIGNS[1] = {0u};\n"  # turned outside, by a matrix
    bits = (sign_arrays(head_dim) < 0).reshape(-1, 32)
    words = [int(sum(1 << i for i, bit in enumerate(row) if bit)) for row in bits]
    body = ", ".join(f"{w}u" for w in words)
    return f"TQ_CONST u32 SIGNS[{len(words)}] = {{{body}}};\n"


def _table(name: str, values: np.ndarray) -> str:
    body = ", ".join(_number(float(v)) for v in values)
    return f"TQ_CONST float {name}[{len(values)}] = {{{body}}};\n"


def _number(x: float) -> str:
    return f"{x!r}f" if "e" in repr(x) or "." in repr(x) else f"{x!r}.0f"


def _word(parts: list[int]) -> str:
    return f"{sum(part << (8 * i) for i, part in enumerate(parts))}u"
