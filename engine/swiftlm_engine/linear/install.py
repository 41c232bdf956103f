"""Puts the row products behind a loaded model's own layers: same parameters, other arithmetic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear

from swiftlm_engine.linear.products import MAX_ROWS, Products, ProductWeights


class RowLayer:
    """One layer's weights, as its kernels take them."""

    def __init__(self, module: nn.Module, products: Products) -> None:
        self.products = products
        self.min_rows = 1  # from how many rows on it is used
        self._module = module
        self._weights: ProductWeights | None = None

    @property
    def weights(self) -> ProductWeights:
        """Read again where the module was given others."""
        held = self._module["weight"]
        if self._weights is None or self._weights.weight is not held:
            self._weights = weights_of(self._module)
        return self._weights

    def takes(self, x: mx.array) -> bool:
        """Rows of a decode step: one token each."""
        if x.ndim < 2 or x.shape[-2] != 1:
            return False
        few = self.min_rows <= x.size // x.shape[-1] <= MAX_ROWS
        return few and self.products.fits(self.weights, x.dtype)


def weights_of(module: nn.Module) -> ProductWeights:
    if "scales" not in module:
        return ProductWeights(module["weight"])
    packing = module.group_size, module.bits, getattr(module, "mode", "affine")
    return ProductWeights(module["weight"], module["scales"], module.get("biases"), *packing)


def _product(module: Any, x: mx.array, usual: Callable[[mx.array], mx.array]) -> mx.array:
    """Of a layer that has been installed; `usual` is what MLX computes."""
    layer: RowLayer = module.row_layer
    if not layer.takes(x):
        return usual(x)
    y = layer.products.product(x, layer.weights)
    return y + module["bias"] if "bias" in module else y


class RowQuantizedLinear(nn.QuantizedLinear):
    def __call__(self, x: mx.array) -> mx.array:
        return _product(self, x, super().__call__)


class RowLinear(nn.Linear):
    def __call__(self, x: mx.array) -> mx.array:
        return _product(self, x, super().__call__)


class RowQuantizedEmbedding(nn.QuantizedEmbedding):
    def as_linear(self, x: mx.array) -> mx.array:
        return _product(self, x, super().as_linear)


class RowEmbedding(nn.Embedding):
    def as_linear(self, x: mx.array) -> mx.array:
        return _product(self, x, super().as_linear)


class RowSwitchLinear(QuantizedSwitchLinear):
    """Experts: one for each row and place, whatever order they come in."""

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        layer: RowLayer = self.row_layer
        rows = x.size // x.shape[-1]
        few = x.shape[-2] == 1 and rows <= indices.size <= 512
        plain = self.get("global_scale") is None and "bias" not in self
        if not (few and plain and layer.products.fits(layer.weights, x.dtype)):
            return super().__call__(x, indices, sorted_indices)
        flat = layer.products.gathered(x.reshape(rows, -1), layer.weights, indices.flatten())
        return flat.reshape(*indices.shape, 1, -1)


_KINDS: dict[type[nn.Module], type[nn.Module]] = {
    nn.QuantizedLinear: RowQuantizedLinear,
    nn.Linear: RowLinear,
    nn.QuantizedEmbedding: RowQuantizedEmbedding,
    nn.Embedding: RowEmbedding,
    QuantizedSwitchLinear: RowSwitchLinear,
}
_PLAIN = {ours: plain for plain, ours in _KINDS.items()}


def install(model: nn.Module, products: Products) -> int:
    """Returns how many layers compute so now."""
    count = 0
    for module in list(_layers(model)):
        module.row_layer = RowLayer(module, products)
        module.__class__ = _KINDS[type(module)]
        count += 1
    return count


def warm(model: nn.Module, dtype: mx.Dtype, max_rows: int) -> None:
    """Compiles what steps of up to `max_rows` rows will need, so that no request waits for it."""
    seen: set[tuple[object, ...]] = set()
    for module in model.modules():
        layer = getattr(module, "row_layer", None)
        if layer is None or isinstance(module, QuantizedSwitchLinear):
            continue
        weights: ProductWeights = layer.weights
        shape = (*weights.weight.shape, weights.bits, weights.group, weights.mode)
        if shape in seen or not layer.products.fits(weights, dtype):
            continue
        seen.add(shape)
        for rows in (1, 9, 17):  # the first of each number of tiles
            if rows <= max_rows:
                mx.eval(layer.products.product(mx.zeros((rows, 1, weights.inputs), dtype), weights))


def keep_faster(model: nn.Module, dtype: mx.Dtype) -> None:
    """Leaves lone rows to MLX's own product where that is faster: measured once per shape.

    MLX runs its kernel once for each row of a step (CUDA), so that from two rows on there is
    nothing to measure.
    """
    found: dict[tuple[object, ...], int] = {}
    for module in model.modules():
        layer = getattr(module, "row_layer", None)
        if layer is None or isinstance(module, QuantizedSwitchLinear):
            continue
        weights: ProductWeights = layer.weights
        shape = (*weights.weight.shape, weights.bits, weights.group, weights.mode)
        if shape not in found:
            found[shape] = 1 if _is_faster(module, layer, dtype) else 2
        layer.min_rows = found[shape]


def _is_faster(module: nn.Module, layer: RowLayer, dtype: mx.Dtype) -> bool:
    x = mx.zeros((1, 1, layer.weights.inputs), dtype)
    if not layer.takes(x):
        return False
    plain = _PLAIN[type(module)]
    head = isinstance(module, RowQuantizedEmbedding | RowEmbedding)
    theirs = plain.as_linear if head else plain.__call__
    ours = _seconds(lambda: layer.products.product(x, layer.weights))
    return ours <= _seconds(lambda: theirs(module, x))


def _seconds(call: Callable[[], mx.array]) -> float:
    best = float("inf")
    for _ in range(4):
        started = time.perf_counter()
        mx.eval([call() for _ in range(8)])
        best = min(best, time.perf_counter() - started)
    return best


def remove(model: nn.Module) -> None:
    for module in model.modules():
        if type(module) in _PLAIN:
            module.__class__ = _PLAIN[type(module)]
            del module.row_layer


def _layers(model: nn.Module) -> Iterator[Any]:
    return (module for module in model.modules() if type(module) in _KINDS)
