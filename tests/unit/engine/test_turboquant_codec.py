"""The codec: published tables and sign arrays, distortion, bytes, and input no model should
give."""

import mlx.core as mx
import numpy as np
import pytest

from swiftlm_engine.turboquant import formats, stats, tables
from swiftlm_engine.turboquant.codec import Codec
from swiftlm_engine.turboquant.formats import FORMATS, K4V3, K4V4, K8V3, SPEC, SPEC_SRHT, KVFormat
from swiftlm_engine.turboquant.packing import (
    NibbleOrder,
    pack_keys,
    pack_values,
    reorder_keys,
    unpack_keys,
    unpack_values,
)
from swiftlm_engine.turboquant.rotation import Rotation

HEAD_DIMS = [64, 80, 96, 112, 128, 256, 512]


def on_the_sphere(dim: int, tokens: int = 2048, seed: int = 0) -> mx.array:
    mx.random.seed(seed)
    x = mx.random.normal((1, tokens, dim))
    return x / mx.linalg.norm(x, axis=-1, keepdims=True)


def round_trip(format: KVFormat, x: mx.array) -> tuple[mx.array, mx.array]:
    codec = Codec(format, x.shape[-1])
    pages = codec.encode(x, x)
    return (
        codec.rotation.inverse(codec.decode_keys(pages)),
        codec.rotation.inverse(codec.decode_values(pages)),
    )


def distortion(x: mx.array, decoded: mx.array) -> float:
    return mx.mean(mx.sum((x - decoded) ** 2, -1)).item()


def slope(x: mx.array, decoded: mx.array) -> float:
    return (mx.sum(x * decoded) / mx.sum(x * x)).item()


def test_sign_arrays_are_the_published_draws():
    draws = np.random.default_rng(42)
    published = np.stack([draws.choice([-1, 1], 128), draws.choice([-1, 1], 128)])
    assert (tables.sign_arrays(128) == published).all()
    assert (tables.sign_arrays(64) == published[:, :64]).all()


@pytest.mark.parametrize(("bits", "error"), [(3, 0.034548), (4, 0.009501)])
def test_value_table_has_the_lloyd_max_error_on_a_normal_variable(bits: int, error: float):
    quantiser = tables.value_quantiser(bits)
    y = np.linspace(-8, 8, 400_001)
    density = np.exp(-y * y / 2) / np.sqrt(2 * np.pi) * (y[1] - y[0])
    decoded = quantiser.levels[np.searchsorted(quantiser.boundaries, y)]
    assert np.sum((y - decoded) ** 2 * density) == pytest.approx(error, rel=2e-3)


@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_rotation_is_undone_by_its_inverse_and_keeps_lengths(dim: int):
    x = on_the_sphere(dim, 64)
    turned = Rotation(dim).forward(x)
    assert mx.allclose(Rotation(dim).inverse(turned), x, atol=2e-6)
    assert mx.allclose(mx.linalg.norm(turned, axis=-1), mx.ones((1, 64)), atol=2e-6)
    assert not mx.allclose(turned, x, atol=0.1)


@pytest.mark.parametrize(
    ("format", "keys", "values"),
    [
        (K4V3, 0.0096, 0.0345),
        (K4V4, 0.0096, 0.0096),
        (SPEC, 0.0102, 0.0345),
        (SPEC_SRHT, 0.0125, 0.0345),
        (K8V3, 0.0001, 0.0345),
    ],
    ids=lambda v: v.name if isinstance(v, KVFormat) else str(v),
)
def test_distortion_at_128_is_within_its_target(format: KVFormat, keys: float, values: float):
    x = on_the_sphere(128)
    decoded_keys, decoded_values = round_trip(format, x)
    assert distortion(x, decoded_keys) <= keys
    assert distortion(x, decoded_values) <= values


@pytest.mark.parametrize("format", [K4V3, SPEC, K8V3], ids=lambda f: f.name)
@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_inner_products_keep_their_slope(format: KVFormat, dim: int):
    x = on_the_sphere(dim, 1024)
    assert abs(slope(x, round_trip(format, x)[0]) - 1) <= 0.006


def test_residual_sign_without_the_shrink_would_miss_its_target():
    """Guards the scale sqrt(2/pi)/sqrt(d): the published sqrt(pi/2)/d, or no shrink, fails."""
    x = on_the_sphere(128)
    codec = Codec(SPEC_SRHT, 128)
    codes, (norm, residual) = codec.encode_keys(x)
    for wrong in (np.pi / 2, np.pi / 2 / np.sqrt(128)):
        scaled = [norm[..., None], residual[..., None] * wrong]
        decoded = codec.rotation.inverse(codec.restore_keys(codes, scaled))
        assert distortion(x, decoded) > 0.0185


@pytest.mark.parametrize("format", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("dim", [64, 80, 128, 256])
def test_bytes_per_token_are_what_the_arrays_hold(format: KVFormat, dim: int):
    x = on_the_sphere(dim, formats.SEGMENT_TOKENS)
    held = sum(a.nbytes for a in Codec(format, dim).encode(x, x).arrays()) + 2 * dim
    assert held == format.token_bytes(dim) * formats.SEGMENT_TOKENS


def test_records_at_128_are_116_and_118_bytes():
    assert K4V3.token_bytes(128) == 116 + 0.5
    assert SPEC.token_bytes(128) == 118 + 0.5


def test_unknown_format_names_those_there_are():
    with pytest.raises(formats.UnknownFormat, match="k4v3"):
        formats.parse_format("q4_0")


@pytest.mark.parametrize("order", NibbleOrder)
@pytest.mark.parametrize("dim", [16, 72, 128])
def test_key_words_give_back_their_codes(order: NibbleOrder, dim: int):
    codes = mx.random.randint(0, 16, (2, 128, dim)).astype(mx.uint32)
    words = pack_keys(codes, 4, order)
    assert words.shape == (2, 2, dim // 8, 64)
    assert mx.array_equal(unpack_keys(words, 4, order), codes)
    assert mx.array_equal(reorder_keys(words, order, NibbleOrder.OFFSET), pack_keys(codes, 4))


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("dim", [16, 72, 128])
def test_value_words_give_back_their_codes(bits: int, dim: int):
    codes = mx.random.randint(0, 2**bits, (2, 128, dim)).astype(mx.uint32)
    words = pack_values(codes, bits)
    assert words.nbytes == codes.size * bits // 8
    assert mx.array_equal(unpack_values(words, dim, bits), codes)


def test_eight_bit_key_words_give_back_their_codes():
    codes = mx.random.randint(0, 256, (2, 64, 96)).astype(mx.uint32)
    assert mx.array_equal(unpack_keys(pack_keys(codes, 8), 8), codes)


BAD_VECTORS = {
    "nan": [float("nan"), 1.0],
    "infinite": [float("inf"), float("-inf"), 1.0],
    "zero": [0.0],
    "huge": [1e5],
    "one huge channel": [1e5, 0.0, 1.0],
    "beyond fp16": [3e38],
    "subnormal": [1e-40],
    "subnormal in fp16": [1e-7],
}


@pytest.mark.parametrize("format", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("case", BAD_VECTORS)
def test_bad_numbers_round_trip_without_nan(format: KVFormat, case: str):
    x = mx.array(np.resize(np.array(BAD_VECTORS[case], np.float32), (1, 64, 128)))
    keys, values = round_trip(format, x)
    assert mx.all(mx.isfinite(keys))
    assert mx.all(mx.isfinite(values))
    if case == "zero":
        assert mx.all(keys == 0)
        assert mx.all(values == 0)


def test_huge_channel_keeps_its_size():
    x = mx.zeros((1, 64, 128))
    x[..., 3] = 1e5
    keys, _ = round_trip(K4V3, x)
    assert mx.linalg.norm(keys[0, 0]).item() == pytest.approx(65504, rel=0.02)  # fp16's largest


def attention_kl(keys: mx.array, decoded: mx.array, queries: mx.array) -> float:
    exact, coded = (queries @ k.swapaxes(-1, -2) for k in (keys, decoded))
    exact, coded = (x - mx.logsumexp(x, -1, keepdims=True) for x in (exact, coded))
    return mx.mean(mx.sum(mx.exp(exact) * (exact - coded), -1)).item()


def test_biased_keys_cost_little_once_mean_and_scale_are_off():
    mx.random.seed(0)
    dim, tokens = 128, 2048
    bias = mx.random.normal((1, 1, dim)) * 8
    keys = mx.random.normal((1, tokens, dim)) + bias
    queries = mx.random.normal((1, 64, dim)) * (2.5 / dim**0.5)
    codec = Codec(K4V3, dim)

    means = stats.means_of_tokens(stats.segment_means(keys, 0), 0, tokens // 64)
    scale = stats.equaliser(keys - means, queries).astype(mx.float32)[:, None]
    smoothed = codec.encode((keys - means) / scale, keys)
    decoded = codec.rotation.inverse(codec.decode_keys(smoothed)) * scale + means
    plain = codec.rotation.inverse(codec.decode_keys(codec.encode(keys, keys)))

    assert attention_kl(keys, decoded, queries) < 0.03
    assert attention_kl(keys, plain, queries) > 0.3


def test_equaliser_is_clamped_and_has_geometric_mean_one():
    keys = mx.random.normal((2, 256, 64)) * mx.array([1e4] + [1.0] * 62 + [0.0])
    scale = stats.equaliser(keys, mx.random.normal((4, 8, 64))).astype(mx.float32)
    assert mx.all(scale >= 1 / stats.EQUALISER_LIMIT)
    assert mx.all(scale <= stats.EQUALISER_LIMIT)
    assert mx.all(mx.abs(mx.mean(mx.log(scale), -1)) < 0.2)
