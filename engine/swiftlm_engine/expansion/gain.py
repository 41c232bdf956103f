"""How much faster expanded weights multiply than the packed ones did, measured on a model's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from swiftlm_engine.expansion.orientation import fastest_s, some_rows

_MANY = 16  # rows, as of a short prompt
_PASSES = 2
_PASS_BYTES = 512 << 20  # of float32 that are measured; the rest is like them
_PACKED_WEIGHTS = 1 << 20  # that are measured: the time of packed products is linear in them


class Gain:
    """`before` a module is replaced, `ratios` once all are."""

    def __init__(self) -> None:
        self._packed: dict[tuple[object, ...], tuple[float, float]] = {}  # one row, and many
        self._keys: dict[str, tuple[object, ...]] = {}  # of each module, by its path
        self._columns: dict[str, int] = {}

    def before(self, path: str, module: Any) -> None:  # Any: quantized modules share no base
        if not isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
            return
        key = (type(module), module["weight"].shape, module.bits, module.group_size, module.mode)
        columns = module["weight"].shape[-1] * 32 // module.bits
        self._keys[path], self._columns[path] = key, columns
        if key not in self._packed:
            self._packed[key] = _packed_s(module, columns)

    def ratios(self, modules: dict[str, nn.Module]) -> tuple[float, float]:
        """Times as fast: one row, and many. In a pass over the modules as a token makes it: what a
        cache holds of one matrix is gone before it is needed again."""
        chosen, num_bytes = [], 0
        for path in self._keys:
            chosen.append(path)
            num_bytes += modules[path]["weight"].nbytes
            if num_bytes > _PASS_BYTES:
                break
        found = []
        for i, rows in enumerate((1, _MANY)):
            packed = sum(self._packed[self._keys[path]][i] for path in chosen)
            calls = [_product(modules[path], rows, self._columns[path]) for path in chosen]
            floats = min(_pass_s(calls) for _ in range(_PASSES))
            found.append(packed / floats if floats else 1.0)
        return found[0], found[1]


def _pass_s(calls: list[Callable[[], None]]) -> float:
    started = time.perf_counter()
    for call in calls:
        call()
    return time.perf_counter() - started


def _product(module: Any, rows: int, columns: int) -> Callable[[], None]:
    call = module.as_linear if isinstance(module, nn.Embedding) else module
    x = some_rows(rows, columns)
    return lambda: mx.eval(call(x))


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
