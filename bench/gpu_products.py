"""Products of few rows with packed weights on a CUDA GPU: right first, then how long they take.

    python bench/gpu_products.py

Needs mlx with its CUDA back end and mlx-lm; about two minutes. Every format against float32 plain
ops, a row's bits at every width, then times beside MLX's own products: chains over enough weights
to exceed the L2. Leaves with 1 if a result was wrong.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "engine"))

import mlx.core as mx

from swiftlm_engine.linear import products
from swiftlm_engine.linear.products import ProductWeights, RowProducts
from swiftlm_engine.turboquant.kernels.dialect import cuda

FORMATS = [
    *[("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)],
    ("mxfp4", 4, 32), ("plain", 16, 64),
]  # fmt: skip
SHAPES = [(4096, 4096), (1024, 4096), (12288, 4096), (4096, 12288), (151936, 4096), (3072, 1024)]
WIDTHS = (1, 2, 4, 8, 16, 32)


def packed(
    outputs: int, inputs: int, form: tuple[str, int, int], dtype: mx.Dtype
) -> ProductWeights:
    mode, bits, group = form
    weight = mx.random.normal((outputs, inputs)).astype(dtype)
    if mode == "plain":
        mx.eval(weight)
        return ProductWeights(weight)
    parts = mx.quantize(weight, group_size=group, bits=bits, mode=mode)
    mx.eval(parts)
    return ProductWeights(
        parts[0], parts[1], parts[2] if len(parts) > 2 else None, group, bits, mode
    )


def plain(weights: ProductWeights) -> mx.array:
    if weights.scales is None:
        return weights.weight.astype(mx.float32)
    scales, biases = weights.scales, weights.biases
    if weights.mode == "affine":
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
    found = mx.dequantize(
        weights.weight, scales, biases,
        group_size=weights.group, bits=weights.bits, mode=weights.mode,
    )  # fmt: skip
    return found.astype(mx.float32)


def check(kernels: RowProducts) -> bool:
    wrong = 0
    for form in FORMATS:
        for dtype in (mx.float16, mx.bfloat16):
            for outputs, inputs in ((200, 1152), (4160, 2048)):
                weights = packed(outputs, inputs, form, dtype)
                x = mx.random.normal((32, 1, inputs)).astype(dtype)
                whole = kernels.product(x, weights)
                want = x[:, 0].astype(mx.float32) @ plain(weights).T
                error = (mx.linalg.norm(whole[:, 0] - want) / mx.linalg.norm(want)).item()
                same = all(
                    mx.array_equal(kernels.product(x[at : at + n], weights), whole[at : at + n])
                    for at, n in ((0, 1), (31, 1), (5, 2), (3, 8), (8, 9), (7, 16), (1, 25))
                )
                if not same or not error < (1e-3 if dtype == mx.float16 else 6e-3):
                    print("WRONG", form, dtype, (outputs, inputs), error, same)
                    wrong += 1
    print("check", "FAILED" if wrong else "passed", flush=True)
    return not wrong


def microseconds(
    call: Callable[[mx.array, ProductWeights], mx.array], rows: int, sets: list
) -> float:
    """Each call waits for the one before: one number of its result is added to the next rows."""
    x = mx.random.normal((rows, 1, sets[0].inputs)).astype(mx.float16)

    def chain() -> None:
        outs = [call(x, sets[i % len(sets)]) for i in range(32)]
        mx.eval(outs)

    chain()
    best = 1e9
    for _ in range(5):
        started = time.perf_counter()
        chain()
        best = min(best, time.perf_counter() - started)
    return best / 32 * 1e6


def mlx_rows(x: mx.array, weights: ProductWeights) -> mx.array:
    return mx.quantized_matmul(
        x, weights.weight, weights.scales, weights.biases, True, weights.group, weights.bits
    )


def mlx_flat(x: mx.array, weights: ProductWeights) -> mx.array:
    flat = x.reshape(x.shape[0], -1)
    if len(flat) < 8:
        flat = mx.pad(flat, ((0, 8 - len(flat)), (0, 0)))
    return mlx_rows(flat, weights)


def times(kernels: RowProducts) -> None:
    for outputs, inputs in SHAPES:
        size = outputs * inputs * 4.5 / 8
        count = max(2, min(8, int(2e8 // size)))
        sets = [packed(outputs, inputs, ("affine", 4, 64), mx.float16) for _ in range(count)]
        print(f"{inputs} x {outputs}: {size / 4.8e6:.1f} us at 4.8 TB/s")
        for rows in WIDTHS:
            found = {
                "mlx": microseconds(mlx_rows, rows, sets),
                "mlx flat": microseconds(mlx_flat, rows, sets),
                "ours": microseconds(kernels.product, rows, sets),
            }
            print(f"  {rows:2d} rows", {k: f"{v:.1f} us" for k, v in found.items()}, flush=True)


def sweep(kernels: RowProducts) -> None:
    """Other numbers of warps and tiles than the chosen ones."""
    chosen = products.warps_for, products.output_tiles_for
    for outputs, inputs in SHAPES:
        count = max(2, min(8, int(2e8 // (outputs * inputs * 4.5 / 8))))
        sets = [packed(outputs, inputs, ("affine", 4, 64), mx.float16) for _ in range(count)]
        for warps in (4, 8, 16):
            products.warps_for = lambda inputs, warps=warps: warps
            found = []
            for wide in (1, 2, 4):
                for rows in (1, 8, 16):
                    tiles = max(1, rows // 8)
                    if wide * tiles * warps > 64:
                        continue
                    products.output_tiles_for = lambda *_, wide=wide: wide
                    found.append(f"{wide}w{rows}r {microseconds(kernels.product, rows, sets):.1f}")
            print((inputs, outputs), warps, "warps:", "  ".join(found), flush=True)
    products.warps_for, products.output_tiles_for = chosen


def main() -> int:
    mx.random.seed(1)
    kernels = RowProducts(cuda())
    good = check(kernels)
    times(kernels)
    if "--sweep" in sys.argv:
        sweep(kernels)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
