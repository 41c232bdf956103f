"""The CUDA text of the row product, run lane by lane: right, and a row's bits are its own."""

from dataclasses import dataclass, replace

import mlx.core as mx
import pytest
from kernels.shim.build import Options, compiler, is_zig
from kernels.shim.run import Runner

from swiftlm_engine.linear.products import ProductWeights, RowProducts
from swiftlm_engine.turboquant.kernels import dialect

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(compiler() is None, reason="needs clang++ 16 or later, or ziglang"),
]


@dataclass(frozen=True)
class Case:
    bits: int
    group: int = 64
    dtype: mx.Dtype = mx.float16
    mode: str = "affine"
    inputs: int = 192
    outputs: int = 24

    def __str__(self) -> str:
        return f"{self.mode}-{self.bits}-g{self.group}-{self.dtype}".replace("mlx.core.", "")

    def weights(self) -> tuple[ProductWeights, mx.array]:
        """And what they stand for, (N, K) in float32."""
        weight = mx.random.normal((self.outputs, self.inputs)).astype(self.dtype)
        if self.bits == 16:
            return ProductWeights(weight), weight.astype(mx.float32)
        packing = {"group_size": self.group, "bits": self.bits, "mode": self.mode}
        codes, *scales = mx.quantize(weight, **packing)
        wide = scales if self.mode != "affine" else [s.astype(mx.float32) for s in scales]
        plain = mx.dequantize(codes, *wide, **packing).astype(mx.float32)
        biases = scales[1] if len(scales) > 1 else None
        return ProductWeights(codes, scales[0], biases, self.group, self.bits, self.mode), plain


CASES = [
    Case(4),
    Case(4, 128, mx.bfloat16, inputs=256),
    Case(2, 32),
    Case(3, 64, mx.bfloat16),
    Case(5, 32, mx.bfloat16),
    Case(6),
    Case(8, 64, mx.bfloat16),
    Case(4, 32, mx.bfloat16, "mxfp4"),
    Case(4, 32, mx.float16, "mxfp4"),
    Case(16, dtype=mx.bfloat16),
]


def emulated(options: Options | None = None) -> RowProducts:
    compiled = Runner("cuda", options or Options()).compiler
    return RowProducts(replace(dialect.cuda(), compiler=compiled))


def off(found: mx.array, want: mx.array) -> float:
    return (mx.linalg.norm(found.astype(mx.float32) - want) / mx.linalg.norm(want)).item()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_times_weights_are_those_of_plain_ops_and_do_not_see_each_other(case: Case) -> None:
    mx.random.seed(case.bits)
    weights, plain = case.weights()
    products = emulated()
    assert products.fits(weights, case.dtype)
    x = mx.random.normal((5, 1, case.inputs)).astype(case.dtype)
    found = products.product(x, weights)
    assert off(found[:, 0], x[:, 0].astype(mx.float32) @ plain.T) < (
        1e-3 if case.dtype == mx.float16 else 6e-3
    )
    beside_others = mx.concatenate([x[3:4], x[:2] * 100])
    for rows in (x[3:4], beside_others):
        assert mx.array_equal(products.product(rows, weights)[0], found[3])


def test_wider_blocks_sum_each_row_in_the_same_order() -> None:
    case = Case(4, inputs=128)
    weights, _ = case.weights()
    products = emulated()
    x = mx.random.normal((40, 1, 128)).astype(case.dtype)
    widest = products.product(x, weights)
    for count in (1, 9, 20):
        assert mx.array_equal(products.product(x[:count], weights), widest[:count])


def test_each_row_meets_the_experts_that_were_chosen_for_it() -> None:
    case = Case(4, outputs=24, inputs=128)
    experts = [case.weights() for _ in range(3)]
    parts = [(w.weight, w.scales, w.biases) for w, _ in experts]
    bank = ProductWeights(*map(mx.stack, zip(*parts, strict=True)), 64, 4)
    chosen = mx.array([[2, 0], [1, 2]], mx.uint32)
    x = mx.random.normal((2, 128)).astype(mx.float16)
    products = emulated()
    found = products.gathered(x, bank, chosen.flatten())
    for place, (row, expert) in enumerate([(0, 2), (0, 0), (1, 1), (1, 2)]):
        alone = products.product(x[row].reshape(1, 1, -1), experts[expert][0])
        assert mx.array_equal(found[place], alone[0, 0])


def test_weights_without_a_kernel_are_left_to_mlx() -> None:
    weights, _ = Case(4).weights()
    assert not RowProducts.fits(weights, mx.float32)
    assert not RowProducts.fits(replace(weights, mode="nvfp4"), mx.float16)
    assert not RowProducts.fits(Case(16).weights()[0], mx.bfloat16)


@pytest.mark.parametrize("sanitize", ["thread", "address"])
def test_row_products_pass_the_sanitizers(sanitize: str) -> None:
    if sanitize == "address" and is_zig():
        pytest.skip("zig has no AddressSanitizer")
    weights, plain = Case(4, inputs=128, outputs=20).weights()
    x = mx.random.normal((3, 1, 128)).astype(mx.float16)
    found = emulated(Options(sanitize=sanitize)).product(x, weights)
    assert off(found[:, 0], x[:, 0].astype(mx.float32) @ plain.T) < 1e-3
