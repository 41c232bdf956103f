"""`RowProducts`: products of few rows with weights, each row to the same bits at every width."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import mlx.core as mx

from swiftlm_engine.linear.cuda_text import row_product
from swiftlm_engine.turboquant.kernels.dialect import Dialect, Text, compiled, cuda, is_sound

MAX_ROWS = 128  # drafts of several rows; weights are read once for 32 of them
_MAX_ERROR = 0.01
_BITS = (2, 3, 4, 5, 6, 8)


@dataclass(frozen=True, slots=True)
class ProductWeights:
    """As MLX packs them; 16 `bits` are plain numbers without scales."""

    weight: mx.array  # (N, K * bits / 32), or (E, N, ...)
    scales: mx.array | None = None
    biases: mx.array | None = None
    group: int = 64
    bits: int = 16
    mode: str = "affine"

    @property
    def inputs(self) -> int:
        last = self.weight.shape[-1]
        return last if self.bits == 16 else last * 32 // self.bits

    @property
    def outputs(self) -> int:
        return int(self.weight.shape[-2])


class Products(Protocol):
    """Products in which a row's bits do not depend on how many rows there are. Lazy."""

    def fits(self, weights: ProductWeights, dtype: mx.Dtype) -> bool: ...

    def product(self, x: mx.array, weights: ProductWeights) -> mx.array: ...

    def gathered(self, x: mx.array, weights: ProductWeights, experts: mx.array) -> mx.array: ...


class RowByRow:
    """MLX's own product, once for each row: for back ends without our kernels. It reads the
    weights as often as there are rows."""

    def fits(self, weights: ProductWeights, dtype: mx.Dtype) -> bool:
        return True

    def product(self, x: mx.array, weights: ProductWeights) -> mx.array:
        rows = x.reshape(-1, 1, x.shape[-1])
        each = [_mlx_product(row, weights) for row in mx.split(rows, rows.shape[0])]
        return mx.concatenate(each).reshape(*x.shape[:-1], -1)

    def gathered(self, x: mx.array, weights: ProductWeights, experts: mx.array) -> mx.array:
        share = experts.size // x.shape[0]
        each = [
            mx.gather_qmm(
                x[i // share].reshape(1, 1, -1),
                weights.weight,
                weights.scales,
                weights.biases,
                rhs_indices=experts[i : i + 1],
                transpose=True,
                group_size=weights.group,
                bits=weights.bits,
                mode=weights.mode,
            )
            for i in range(experts.size)
        ]
        return mx.concatenate(each)[:, 0]


def _mlx_product(row: mx.array, weights: ProductWeights) -> mx.array:
    if weights.scales is None:
        return row @ weights.weight.T
    return mx.quantized_matmul(
        row,
        weights.weight,
        weights.scales,
        weights.biases,
        transpose=True,
        group_size=weights.group,
        bits=weights.bits,
        mode=weights.mode,
    )


@dataclass(slots=True)
class RowProducts:
    """The kernels of one GPU. Lazy."""

    dialect: Dialect
    _kernels: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    @staticmethod
    def fits(weights: ProductWeights, dtype: mx.Dtype) -> bool:
        """Whether there is a kernel for these weights and rows of this number type."""
        if dtype not in (mx.float16, mx.bfloat16) or weights.inputs % 32:
            return False
        if weights.bits == 16:
            return weights.weight.dtype == dtype
        if weights.scales is None or weights.group not in (32, 64, 128):
            return False
        if weights.mode == "mxfp4":
            return True
        packed = weights.mode == "affine" and weights.bits in _BITS and weights.biases is not None
        return packed and weights.scales.dtype in (dtype, mx.float32)

    def product(self, x: mx.array, weights: ProductWeights) -> mx.array:
        """(..., K) of up to `MAX_ROWS` rows -> (..., N)."""
        rows = x.size // x.shape[-1]
        shape = (*x.shape[:-1], weights.outputs)
        if x.ndim != 3:
            x = x.reshape(1, rows, -1)
        tiles = 1 if rows <= 8 else 2 if rows <= 16 else 4
        blocks = -(-rows // (8 * tiles))
        return self._launch([x, weights.weight], weights, tiles, blocks, shape)

    def gathered(self, x: mx.array, weights: ProductWeights, experts: mx.array) -> mx.array:
        """Rows (R, K), each with P / R of the experts (P,), in order -> (P, N)."""
        shape = (experts.size, weights.outputs)
        inputs = [x, weights.weight, experts]
        return self._launch(inputs, weights, 1, experts.size, shape, gather=True)

    def _launch(
        self,
        inputs: list[mx.array],
        weights: ProductWeights,
        tiles: int,
        blocks: int,
        shape: tuple[int, ...],
        gather: bool = False,
    ) -> mx.array:
        scales = weights.weight if weights.scales is None else weights.scales
        biases = scales if weights.biases is None else weights.biases
        warps = warps_for(weights.inputs)
        wide = output_tiles_for(weights.outputs, tiles, warps)
        kernel = self._kernel(weights, inputs[0].dtype, (wide, tiles, warps, int(gather)))
        (out,) = kernel(
            inputs=[*inputs, scales, biases],
            template=[("Z", inputs[0].dtype)],
            grid=(-(-weights.outputs // (16 * wide)) * warps * 32, blocks, 1),
            threadgroup=(warps * 32, 1, 1),
            output_shapes=[shape],
            output_dtypes=[inputs[0].dtype],
        )
        product: mx.array = out
        return product

    def _kernel(self, weights: ProductWeights, dtype: mx.Dtype, sizes: tuple[int, ...]) -> Any:
        key = (weights.bits, weights.mode, weights.group, dtype, weights.inputs % 64, *sizes)
        if key not in self._kernels:
            codes = 2 if weights.bits == 16 else int(weights.mode == "mxfp4")
            plain = weights.bits == 16
            unit = 32 if weights.inputs % 64 or (weights.group == 32 and not plain) else 64
            lines = {
                "BITS": weights.bits,
                "CODES": codes,
                "UNIT": unit,
                "GROUP": unit if plain else weights.group,
                "HALF": int(dtype == mx.float16),
            }
            numbers = "".join(f"#define {name} {value}\n" for name, value in lines.items())
            named = dict(zip(("MT", "NT", "NW"), sizes, strict=False))
            self._kernels[key] = compiled(self.dialect, _text(bool(sizes[3])), numbers, named)
        return self._kernels[key]


@cache
def _text(gather: bool) -> Text:
    return row_product(gather)


def output_tiles_for(outputs: int, row_tiles: int, warps: int) -> int:
    """Of a block; more of them read the rows less often, fewer leave more blocks."""
    return 2 if outputs >= 4096 and row_tiles * warps <= 32 else 1


def warps_for(inputs: int) -> int:
    """Of a block, which share the inputs: by their number alone, as the order of a sum is its."""
    if inputs < 2048:
        return 4
    return 8 if inputs < 8192 else 16


@cache
def row_products() -> RowProducts | None:
    """Those of the GPU that MLX uses: CUDA from sm_80 on. None elsewhere, and where the first
    result is wrong."""
    if mx.default_device().type != mx.DeviceType.gpu or mx.metal.is_available():
        return None
    products = RowProducts(cuda())
    sound = is_sound(lambda: _first_error(products), _MAX_ERROR, "no row products")
    return products if sound else None


def _first_error(products: RowProducts) -> float:
    """Relative, of a small product."""
    packed = mx.quantize(mx.random.normal((48, 256)), group_size=64, bits=4)
    weight, scales, biases = packed[0], packed[1], packed[2]
    rows = mx.random.normal((3, 1, 256)).astype(mx.float16)
    found = products.product(rows, ProductWeights(weight, scales, biases, 64, 4)).astype(mx.float32)
    plain = mx.dequantize(weight, scales, biases, group_size=64, bits=4)
    want = rows.astype(mx.float32) @ plain.T
    return float((mx.linalg.norm(found - want) / mx.linalg.norm(want)).item())
