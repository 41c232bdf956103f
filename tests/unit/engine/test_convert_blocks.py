"""GGUF blocks repacked for MLX equal gguf's own dequantisation, bit for bit."""

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, dequantize
from gguf import GGMLQuantizationType as Type

from swiftlm_engine.convert.blocks import EXACT, GROUP, pack, quantise
from swiftlm_engine.convert.safetensors_file import as_dtype, from_dtype


def random_blocks(kind: Type, rows: int, blocks: int) -> np.ndarray:
    """Any bytes are a block, as long as its float16 scales are finite."""
    size = GGML_QUANT_SIZES[kind][1]
    raw = np.random.default_rng(0).integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    scales = np.random.default_rng(1).normal(0, 0.02, (rows, blocks, 2)).astype(np.float16)
    raw[..., :4] = scales.view(np.uint8)
    return raw.reshape(rows, blocks * size)


@pytest.mark.parametrize("kind", list(EXACT), ids=lambda kind: kind.name)
def test_repacked_blocks_equal_the_reference_exactly(kind: Type) -> None:
    raw = random_blocks(kind, 6, 4)
    matrix = EXACT[kind].affine(raw)
    np.testing.assert_array_equal(matrix.dequantised(), dequantize(raw, kind))


@pytest.mark.parametrize("kind", list(EXACT), ids=lambda kind: kind.name)
def test_mlx_reads_the_packed_bits_back(kind: Type) -> None:
    raw = random_blocks(kind, 6, 4)
    matrix = EXACT[kind].affine(raw)
    read = mx.dequantize(
        mx.array(pack(matrix.codes, matrix.bits)),
        mx.array(matrix.scales),
        mx.array(matrix.biases),
        group_size=GROUP,
        bits=matrix.bits,
    )
    np.testing.assert_array_equal(np.array(read), dequantize(raw, kind))


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0])
def test_float16_keeps_scales_that_were_float16(kind: Type) -> None:
    matrix = EXACT[kind].affine(random_blocks(kind, 6, 4))
    for values in (matrix.scales, matrix.biases):
        np.testing.assert_array_equal(from_dtype(as_dtype(values, "F16"), "F16"), values)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_requantised_weights_stay_within_half_a_step(bits: int) -> None:
    values = np.random.default_rng(3).normal(0, 1, (4, 128)).astype(np.float32)
    matrix = quantise(values, bits)
    step = np.repeat(matrix.scales, GROUP, axis=-1)
    assert (np.abs(matrix.dequantised() - values) <= step * 0.501).all()
    assert matrix.codes.max() == 2**bits - 1


def test_constant_group_is_exact() -> None:
    values = np.full((1, GROUP), 0.7, np.float32)
    np.testing.assert_array_equal(quantise(values, 4).dequantised(), values)


def test_bfloat16_rounds_half_to_even() -> None:
    values = np.random.default_rng(5).normal(0, 1, 1000).astype(np.float32)
    ours = from_dtype(as_dtype(values, "BF16"), "BF16")
    reference = np.array(mx.array(values).astype(mx.bfloat16).astype(mx.float32))
    np.testing.assert_array_equal(ours, reference)
