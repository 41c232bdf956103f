"""Products of one row on the CPU back end: each shape in the orientation that is fastest here.

A BLAS has other kernels for `x @ w.T` and for `w @ x.T`, and which is faster depends on the shape,
the BLAS and the machine, so it is measured at load. Another orientation is taken only where it
gives the bits of the usual one: a row is the same alone and in a batch as far as the BLAS has it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn

_MUCH_FASTER = 0.9  # of the usual product's time; a busy machine measures within that
_ROUNDS = 9
_SPENT_S = 0.03  # per candidate: large products are measured fewer times
_PROBES = 2


class _ColumnLinear(nn.Linear):
    def __call__(self, x: mx.array) -> mx.array:
        if x.size != x.shape[-1]:
            return super().__call__(x)
        return _with_bias(self, _column(x, self["weight"]))


class _VectorLinear(nn.Linear):
    def __call__(self, x: mx.array) -> mx.array:
        if x.size != x.shape[-1]:
            return super().__call__(x)
        return _with_bias(self, _vector(x, self["weight"]))


class _ColumnEmbedding(nn.Embedding):
    def as_linear(self, x: mx.array) -> mx.array:
        return super().as_linear(x) if x.size != x.shape[-1] else _column(x, self.weight)


class _VectorEmbedding(nn.Embedding):
    def as_linear(self, x: mx.array) -> mx.array:
        return super().as_linear(x) if x.size != x.shape[-1] else _vector(x, self.weight)


_CANDIDATES: dict[type[nn.Module], tuple[type[nn.Module], ...]] = {
    nn.Linear: (nn.Linear, _ColumnLinear, _VectorLinear),
    nn.Embedding: (nn.Embedding, _ColumnEmbedding, _VectorEmbedding),
}


def orient(model: nn.Module) -> int:
    """Chooses for every float32 matrix that rows are multiplied with; returns for how many another
    orientation than the usual one. The weights must be evaluated."""
    chosen: dict[tuple[type[nn.Module], tuple[int, ...], bool], type[nn.Module]] = {}
    turned = 0
    for module in _multiplied(model):
        key = (type(module), module["weight"].shape, "bias" in module)
        if key not in chosen:
            chosen[key] = _fastest(module)
        if chosen[key] is not key[0]:
            module.__class__ = chosen[key]
            turned += 1
    return turned


def _multiplied(model: nn.Module) -> list[nn.Module]:
    modules = dict(model.named_modules())
    tied = not any("lm_head" in path.split(".") for path in modules)
    return [
        module
        for path, module in modules.items()
        if type(module) in _CANDIDATES
        and module["weight"].dtype == mx.float32
        and (type(module) is nn.Linear or (tied and path.endswith("embed_tokens")))
    ]


def _fastest(module: nn.Module) -> type[nn.Module]:
    """The type that `module` shall have; it has its own again when this returns."""
    kinds = _CANDIDATES[type(module)]
    columns = module["weight"].shape[-1]
    probes = [some_rows(1, columns, seed)[None] for seed in range(_PROBES)]
    usual = [_product(module, kinds[0], probe) for probe in probes]
    exact = [
        kind
        for kind in kinds
        if all(
            mx.array_equal(_product(module, kind, probe), bits).item()
            for probe, bits in zip(probes, usual, strict=True)
        )
    ]
    times = fastest_s([partial(_product, module, kind, probes[0]) for kind in exact])
    best = min(range(len(exact)), key=times.__getitem__)
    return exact[best] if times[best] < _MUCH_FASTER * times[0] else kinds[0]


def fastest_s(calls: list[Callable[[], Any]]) -> list[float]:
    """Of each call, the least time of several; in turns, so that a busy moment meets all."""
    best = [float("inf")] * len(calls)
    spent = 0.0
    for _ in range(_ROUNDS):
        for i, call in enumerate(calls):
            started = time.perf_counter()
            call()
            took = time.perf_counter() - started
            best[i] = min(best[i], took)
            spent += took
        if spent > _SPENT_S * len(calls):
            break
    return best


def some_rows(rows: int, columns: int, seed: int = 0) -> mx.array:
    """Numbers to measure with, that use up none of the process's own chance. Evaluated."""
    x = mx.random.normal((rows, columns), key=mx.random.key(seed))
    mx.eval(x)
    return x


def _product(module: Any, kind: type[nn.Module], x: mx.array) -> mx.array:
    own, module.__class__ = type(module), kind
    try:
        y: mx.array = module.as_linear(x) if issubclass(kind, nn.Embedding) else module(x)
        mx.eval(y)
    finally:
        module.__class__ = own
    return y


def _column(x: mx.array, weight: mx.array) -> mx.array:
    return (weight @ x.reshape(1, -1).T).reshape(*x.shape[:-1], -1)


def _vector(x: mx.array, weight: mx.array) -> mx.array:
    return (weight @ x.reshape(-1)).reshape(*x.shape[:-1], -1)


def _with_bias(module: nn.Module, y: mx.array) -> mx.array:
    return y + module["bias"] if "bias" in module else y
