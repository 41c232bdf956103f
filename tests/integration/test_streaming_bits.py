"""Decode with experts on disk gives the same bits as with experts in memory, family by family."""

from __future__ import annotations

import json
import os

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model, quantize_model, save_model
from tiny_models import CONFIGS, make_model

from swiftlm_engine.load.device import Device
from swiftlm_engine.load.weights import load_weights
from swiftlm_engine.messages import EngineFault
from swiftlm_engine.streaming.reader import cast
from swiftlm_engine.streaming.report import NoCache, StreamMode, StreamOptions
from swiftlm_engine.streaming.table import DTYPES, read_headers

NUM_EXPERTS, TOP_K = 6, 2
FAMILIES = (
    "qwen3_moe", "gpt_oss", "deepseek_v3", "mixtral", "olmoe", "glm4_moe", "qwen3_5_moe",
    "gemma4_moe",
)  # fmt: skip
COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


def write(name, folder, **overrides):
    config = CONFIGS[name]
    inner = config.get("text_config", config)
    counts = {key: NUM_EXPERTS for key in COUNTS if key in inner}
    return make_model(name, folder, **counts, **overrides)


def load(folder, options=None, dtype=""):
    return load_weights(folder, dtype, Device.CPU, lambda *_: None, options)


def decode(model, tokens=(5, 17, 99, 300, 5, 42)):
    """Logits after each token, one forward each."""
    cache = make_prompt_cache(model)
    steps = [model(mx.array([[token]]), cache=cache) for token in tokens]
    return mx.concatenate(steps, axis=1)


def prefill(model):
    return model(mx.array([[(7 * i) % 300 for i in range(48)]]), cache=make_prompt_cache(model))


@pytest.mark.parametrize("name", FAMILIES)
def test_decode_is_bit_equal_at_every_slot_count_and_prefill_is_close(name, tmp_path):
    folder = write(name, tmp_path)
    resident = load(folder).model
    bits, whole = decode(resident), prefill(resident)
    for slots in range(TOP_K, NUM_EXPERTS + 1):
        streamed = load(folder, StreamOptions(slots))
        assert mx.array_equal(decode(streamed.model), bits), slots
        assert mx.allclose(prefill(streamed.model), whole, rtol=1e-4, atol=1e-4), slots
        report = streamed.streaming.to_json()
        assert report["problems"] == []
        if slots < NUM_EXPERTS:
            assert report["misses"] > 0
            assert report["num_experts"] == NUM_EXPERTS
        streamed.streaming.streamer.close()


def per_expert(tensors, module, experts, names):
    """One tensor per expert, as checkpoints of other libraries have them."""
    parts = {}
    for name, tensor in tensors.items():
        place, _, rest = name.partition(f".{module}.")
        if not rest:
            parts[name] = tensor
            continue
        component, _, parameter = rest.partition(".")
        for expert in range(NUM_EXPERTS):
            parts[f"{place}.{experts}.{expert}.{names[component]}.{parameter}"] = tensor[expert]
    return parts


def fused(tensors):
    """Gate and up in one tensor."""
    parts = {name: tensor for name, tensor in tensors.items() if ".switch_glu." not in name}
    for name, gate in tensors.items():
        if name.endswith(".switch_glu.gate_proj.weight"):
            place = name.removesuffix(".switch_glu.gate_proj.weight")
            up = tensors[f"{place}.switch_glu.up_proj.weight"]
            parts[f"{place}.gate_up_proj"] = mx.concatenate([gate, up], axis=-2)
            parts[f"{place}.down_proj"] = tensors[f"{place}.switch_glu.down_proj.weight"]
    return parts


SAME = {name: name for name in ("gate_proj", "up_proj", "down_proj")}
MIXTRAL = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
LAYOUTS = {
    "qwen3_moe": lambda tensors: per_expert(tensors, "switch_mlp", "experts", SAME),
    "mixtral": lambda tensors: per_expert(tensors, "switch_mlp", "experts", MIXTRAL),
    "gemma4_moe": fused,
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_unconverted_checkpoints_in_several_files_are_bit_equal(name, tmp_path):
    folder = write(name, tmp_path)
    wanted = decode(load(folder).model)
    tensors = LAYOUTS[name](mx.load(str(folder / "model.safetensors")))
    mx.eval(tensors)
    for stale in ("model.safetensors", "model.safetensors.index.json"):
        (folder / stale).unlink()
    for number in range(3):
        part = dict(list(tensors.items())[number::3])
        mx.save_safetensors(str(folder / f"model-{number}.safetensors"), part)
    assert mx.array_equal(decode(load(folder).model), wanted)
    streamed = load(folder, StreamOptions(3))
    assert mx.array_equal(decode(streamed.model), wanted)
    assert streamed.streaming.to_json()["misses"] > 0


@pytest.mark.parametrize(
    ("mode", "bits", "group_size"), [("affine", 4, 64), ("mxfp4", 4, 32), ("nvfp4", 4, 16)]
)
def test_quantised_experts_are_bit_equal(mode, bits, group_size, tmp_path):
    folder = quantised(tmp_path, mode, bits, group_size)
    wanted = decode(load(folder).model)
    streamed = load(folder, StreamOptions(3))
    assert mx.array_equal(decode(streamed.model), wanted)
    assert streamed.streaming.to_json()["problems"] == []


@pytest.mark.parametrize(
    ("dtype", "asked", "mode"),
    [
        (mx.float16, "auto", StreamMode.EXPERTS),
        (mx.bfloat16, "auto", StreamMode.EXPERTS),
        (mx.float16, "auto", StreamMode.LAYERS),
        (mx.bfloat16, "auto", StreamMode.LAYERS),
        (mx.float16, "bfloat16", StreamMode.EXPERTS),
    ],
)
def test_half_precision_is_read_in_place_or_cast_and_bit_equal(dtype, asked, mode, tmp_path):
    folder = quantised(tmp_path, "affine", 4, 64)  # MLX multiplies only these in 16 bits here
    tensors = mx.load(str(folder / "model.safetensors"))
    halves = {n: t.astype(dtype) if t.dtype == mx.float32 else t for n, t in tensors.items()}
    mx.eval(halves)
    mx.save_safetensors(str(folder / "model.safetensors"), halves)
    wanted = decode(load(folder, dtype=asked).model)
    streamed = load(folder, StreamOptions(3, mode=mode), asked)
    assert streamed.dtype == (str(dtype).rpartition(".")[2] if asked == "auto" else asked)
    assert mx.array_equal(decode(streamed.model), wanted)
    assert streamed.streaming.to_json()["misses"] > 0


@pytest.mark.parametrize("source", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("target", ["F32", "F16", "BF16"])
def test_floats_are_cast_as_mlx_casts_them(source, target):
    patterns = mx.arange(0, 1 << 32, 65521, dtype=mx.uint32)  # signs, ties, subnormals, inf, nan
    values = mx.concatenate([patterns, mx.array([0x7F7FFFFF, 0x3F808000, 0x3F818000], mx.uint32)])
    stored = values.view(mx.float32).astype(DTYPES[source])
    got = mx.zeros(stored.shape, DTYPES[target])
    mx.eval(stored, got)
    cast(memoryview(stored).cast("B"), source, memoryview(got).cast("B"), target)
    assert mx.array_equal(got, stored.astype(DTYPES[target]), equal_nan=True)


def quantised(folder, mode, bits, group_size):
    source = write("qwen3_moe", folder / "floats", num_hidden_layers=3)
    model, config = load_model(source)
    model, config = quantize_model(model, config, group_size, bits, mode=mode)
    target = folder / "quantised"
    save_model(target, model)
    for file in source.iterdir():
        if file.name.startswith(("tokenizer", "special")) or file.suffix == ".jinja":
            (target / file.name).write_bytes(file.read_bytes())
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss", "glm4_moe"])
def test_reading_ahead_changes_no_bit_and_counts_its_cost(name, tmp_path):
    folder = write(name, tmp_path, num_hidden_layers=4)
    bits = decode(load(folder).model)
    streamed = load(folder, StreamOptions(4, prefetch=True))
    assert mx.array_equal(decode(streamed.model), bits)
    report = streamed.streaming.to_json()
    assert report["problems"] == []
    assert report["prefetched"] == report["prefetch_used"] + report["prefetch_wasted"]
    assert report["prefetch_used"] > 0
    off = load(folder, StreamOptions(4))
    decode(off.model)
    assert off.streaming.to_json()["prefetched"] == 0


def test_reading_ahead_is_refused_where_the_router_is_unknown(tmp_path):
    with pytest.raises(EngineFault, match="ssd-prefetch"):
        load(write("gemma4_moe", tmp_path), StreamOptions(4, prefetch=True))


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the page cache cannot be asked")
@pytest.mark.parametrize("nocache", [NoCache.ON, NoCache.OFF])
def test_page_cache_keeps_what_was_read_unless_told_not_to(nocache, tmp_path):
    folder = write("qwen3_moe", tmp_path)
    bits = decode(load(folder).model)
    fd = os.open(folder / "model.safetensors", os.O_RDWR)
    os.fsync(fd)  # dirty pages stay whatever is asked
    streamed = load(folder, StreamOptions(2, nocache=nocache))
    assert mx.array_equal(decode(streamed.model), bits)
    assert streamed.streaming.to_json()["nocache"] is (nocache is NoCache.ON)
    experts = read_headers(folder)["model.layers.0.mlp.switch_mlp.gate_proj.weight"]
    pages = range((experts.offset // 4096 + 1) * 4096, experts.offset + experts.num_bytes, 4096)
    kept = [is_cached(fd, at) for at in pages]
    if nocache is NoCache.OFF:  # the system may need a page for something else
        assert sum(kept) > 0.9 * len(kept)
    for _ in range(8 * (nocache is NoCache.ON)):
        if not all(kept):  # a page that another processor is still filing away outlives one advice
            break
        decode(streamed.model)
        kept = [is_cached(fd, at) for at in pages]
    assert nocache is NoCache.OFF or not all(kept)
    os.close(fd)


def is_cached(fd, offset):
    try:
        return os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False


def test_fewer_experts_per_token_are_used_only_when_asked_for(tmp_path):
    folder = write("qwen3_moe", tmp_path)
    whole, fewer = load(folder, StreamOptions(4)), load(folder, StreamOptions(4, top_k=1))
    assert not mx.array_equal(decode(whole.model), decode(fewer.model))
    assert whole.streaming.experts_per_token == 2
    assert fewer.streaming.to_json()["experts_per_token"] == 1
