"""Puts the row products behind a loaded model's own layers: same parameters, other arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear

from swiftlm_engine.linear.products import MAX_ROWS, RowProducts, Weights


class Layer:
    """One layer's weights, as its kernels take them."""

    def __init__(self, module: nn.Module, products: RowProducts) -> None:
        self.products = products
        self._module = module
        self._weights: Weights | None = None

    @property
    def weights(self) -> Weights:
        """Read again where the module was given others."""
        held = self._module["weight"]
        if self._weights is None or self._weights.weight is not held:
            self._weights = weights_of(self._module)
        return self._weights

    def takes(self, x: mx.array) -> bool:
        """Rows of a decode step: one token each."""
        few = x.ndim > 1 and x.shape[-2] == 1 and x.size <= MAX_ROWS * x.shape[-1]
        return few and self.products.fits(self.weights, x.dtype)


def weights_of(module: nn.Module) -> Weights:
    if "scales" not in module:
        return Weights(module["weight"])
    packing = module.group_size, module.bits, getattr(module, "mode", "affine")
    return Weights(module["weight"], module["scales"], module.get("biases"), *packing)


class RowQuantizedLinear(nn.QuantizedLinear):
    def __call__(self, x: mx.array) -> mx.array:
        layer: Layer = self.row_layer
        if not layer.takes(x):
            return super().__call__(x)
        y = layer.products.product(x, layer.weights)
        return y + self["bias"] if "bias" in self else y


class RowLinear(nn.Linear):
    def __call__(self, x: mx.array) -> mx.array:
        layer: Layer = self.row_layer
        if not layer.takes(x):
            return super().__call__(x)
        y = layer.products.product(x, layer.weights)
        return y + self["bias"] if "bias" in self else y


class RowQuantizedEmbedding(nn.QuantizedEmbedding):
    def as_linear(self, x: mx.array) -> mx.array:
        layer: Layer = self.row_layer
        if not layer.takes(x):
            return super().as_linear(x)
        return layer.products.product(x, layer.weights)


class RowEmbedding(nn.Embedding):
    def as_linear(self, x: mx.array) -> mx.array:
        layer: Layer = self.row_layer
        if not layer.takes(x):
            return super().as_linear(x)
        return layer.products.product(x, layer.weights)


class RowSwitchLinear(QuantizedSwitchLinear):
    """Experts: one for each row and place, whatever order they come in."""

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        layer: Layer = self.row_layer
        rows = x.size // x.shape[-1]
        few = x.shape[-2] == 1 and rows <= indices.size <= MAX_ROWS * 16
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


def install(model: nn.Module, products: RowProducts) -> int:
    """Returns how many layers compute so now."""
    count = 0
    for module in list(_layers(model)):
        module.row_layer = Layer(module, products)
        module.__class__ = _KINDS[type(module)]
        count += 1
    return count


def remove(model: nn.Module) -> None:
    for module in model.modules():
        if type(module) in _PLAIN:
            module.__class__ = _PLAIN[type(module)]
            del module.row_layer


def _layers(model: nn.Module) -> Iterator[Any]:
    return (module for module in model.modules() if type(module) in _KINDS)
