"""How much faster expanded weights multiply than the packed ones did, measured on a model's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from swiftlm_engine.expansion.orientation import fastest_s, some_rows

_MANY = 16  # rows, as of a short prompt
_PACKED_WEIGHTS = 1 << 20  # that are measured: the time of packed products is linear in them


@dataclass(slots=True)
class _Shape:
    """Modules of one shape and packing, and the seconds of one of them."""

    sample: str  # its path
    columns: int
    packed_s: tuple[float, float]  # of one row and of many
    count: int = 1


class Gain:
    """`before` a module is replaced, `ratios` once all are."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[object, ...], _Shape] = {}

    def before(self, path: str, module: Any) -> None:  # Any: quantized modules share no base
        if not isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
            return
        key = (type(module), module["weight"].shape, module.bits, module.group_size, module.mode)
        if key in self._shapes:
            self._shapes[key].count += 1
            return
        columns = module["weight"].shape[-1] * 32 // module.bits
        self._shapes[key] = _Shape(path, columns, _packed_s(module, columns))

    def ratios(self, modules: dict[str, nn.Module]) -> tuple[float, float]:
        """Times as fast: one row, and many."""
        packed, floats = [0.0, 0.0], [0.0, 0.0]
        for shape in self._shapes.values():
            for i, seconds in enumerate(_floats_s(modules[shape.sample], shape.columns)):
                packed[i] += shape.count * shape.packed_s[i]
                floats[i] += shape.count * seconds
        one, many = (p / f if f else 1.0 for p, f in zip(packed, floats, strict=True))
        return one, many


def _packed_s(module: Any, columns: int) -> tuple[float, float]:
    """Of some of the rows of its weight, scaled to all of them."""
    rows = module["weight"].shape[0]
    some = slice(min(rows, max(1, _PACKED_WEIGHTS // columns)))
    biases = module.get("biases")
    arrays = (module["weight"][some], module["scales"][some])
    arrays += (None,) if biases is None else (biases[some],)
    packing = {"group_size": module.group_size, "bits": module.bits, "mode": module.mode}
    one, many = some_rows(1, columns), some_rows(_MANY, columns)
    mx.eval(one, many, *(array for array in arrays if array is not None))
    once, often = fastest_s(
        [
            lambda: mx.eval(mx.quantized_matmul(one, *arrays, **packing)),
            lambda: mx.eval(mx.quantized_matmul(many, *arrays, **packing)),
        ]
    )
    share = rows / len(range(rows)[some])
    return once * share, often * share


def _floats_s(module: Any, columns: int) -> tuple[float, float]:
    call = module.as_linear if isinstance(module, nn.Embedding) else module
    one, many = some_rows(1, columns), some_rows(_MANY, columns)
    mx.eval(one, many)
    once, often = fastest_s([lambda: mx.eval(call(one)), lambda: mx.eval(call(many))])
    return once, often
