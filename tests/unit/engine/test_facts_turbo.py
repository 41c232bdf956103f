"""The planner's price of compressed KV against the codec's own arithmetic and its real caches."""

from pathlib import Path

import mlx.core as mx
import pytest
import tiny_models
from mlx_lm import load

from swiftlm_engine import turboquant
from swiftlm_engine.brain import facts
from swiftlm_engine.brain.facts import KvFormat
from swiftlm_engine.brain.facts import kv as kv_prices
from swiftlm_engine.turboquant import formats
from swiftlm_engine.turboquant.build import model_verdict

TURBO = [kv for kv in KvFormat if kv.turbo]


def test_every_format_of_the_codec_has_a_price_and_no_other() -> None:
    assert {kv.value for kv in TURBO} == set(formats.FORMATS)


@pytest.mark.parametrize("kv", TURBO)
@pytest.mark.parametrize("head_size", [16, 64, 80, 96, 128, 256, 512])
def test_token_costs_what_the_codec_says(kv: KvFormat, head_size: int) -> None:
    codec = formats.parse_format(kv.value)
    slope = kv_prices.record_bytes(kv, head_size)
    slope += kv_prices.mean_bytes(head_size) / kv_prices.SEGMENT_TOKENS
    assert slope == codec.token_bytes(head_size)


def test_constants_are_those_of_the_codec() -> None:
    assert kv_prices.PAGE_TOKENS == formats.PAGE_TOKENS
    assert kv_prices.SEGMENT_TOKENS == formats.SEGMENT_TOKENS
    sizes = range(8, 600, 4)
    assert [kv_prices.supports_head_size(size) for size in sizes] == [
        size % 8 == 0 and formats.MIN_HEAD_DIM <= size <= formats.MAX_HEAD_DIM for size in sizes
    ]


@pytest.mark.parametrize("name", tiny_models.NAMES)
def test_compressed_layers_are_those_of_the_engines_verdict(name: str, tmp_path: Path) -> None:
    folder = tiny_models.make_model(name, tmp_path)
    priced = facts.read_model(folder).compressed_layers(KvFormat.K4V3)
    assert priced == model_verdict(load(str(folder))[0], "k4v3").num_compressed_layers


@pytest.mark.parametrize("kv", [KvFormat.K4V3, KvFormat.SPEC, KvFormat.K8V3])
def test_real_compressed_caches_stay_within_their_price(kv: KvFormat, tmp_path: Path) -> None:
    folder = tiny_models.make_model(
        "llama", tmp_path, max_position_embeddings=8192, num_key_value_heads=1, head_dim=64
    )
    priced = facts.read_model(folder)
    model = load(str(folder))[0]
    turboquant.install(model)
    cache = turboquant.make_caches(model, kv.value).caches
    tokens = 0
    for step in (512, 512, 512, 512, 1):
        model(mx.ones((1, step), mx.int32), cache=cache)
        tokens += step
    real = sum(entry.nbytes for entry in cache)
    price = priced.kv_bytes(tokens, kv=kv)
    assert real <= price
    assert price <= 1.35 * real  # at 2,049 tokens the growth strides are still a large part
    assert real < 0.45 * priced.kv_bytes(tokens)
