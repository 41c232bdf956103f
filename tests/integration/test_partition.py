"""Layers on two streams: the same logits at every split, for every kind of cache, and the same
text from the whole engine."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest
from engine_harness import EngineHarness
from families import EACH
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load
from tiny_models import CONFIGS, make_model

from swiftlm_engine import turboquant
from swiftlm_engine.messages import EngineFault, FaultKind, GenerateJob
from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.split import cpu_gpu
from swiftlm_engine.turboquant.backend import DeviceBackend, PlainBackend

GREEDY = SamplingSettings(temperature=0.0)
PROMPT = list(range(10, 130))


def logits(model) -> mx.array:
    """Of a chunked prefill and three decode steps."""
    caches = make_prompt_cache(model)
    found = [
        model(mx.array([PROMPT[:70]]), cache=caches),
        model(mx.array([PROMPT[70:]]), cache=caches),
    ]
    found += [model(mx.array([[token]]), cache=caches) for token in (5, 9, 200)]
    return mx.concatenate(found, axis=1)


def watch(model) -> list[tuple[int, str]]:
    """(layer, stream) of everything the layers are asked for from now on."""
    seen: list[tuple[int, str]] = []
    for number, layer in enumerate(model.layers):
        for part in layer.children().values():
            for leaf in part if isinstance(part, list) else [part]:
                _watch(leaf, number, seen)
    return seen


def _watch(part, number, seen):
    base = type(part)

    def call(self, *args, **kwargs):
        seen.append((number, str(mx.default_stream(mx.default_device()))))
        return base.__call__(self, *args, **kwargs)

    if isinstance(part, nn.Module):
        part.__class__ = type(base.__name__, (base,), {"__call__": call})


@pytest.fixture(scope="module", params=EACH)
def folder(request, tmp_path_factory):
    return make_model(request.param, tmp_path_factory.mktemp(request.param))


def test_logits_are_equal_at_every_split_and_each_layer_runs_where_it_was_put(folder) -> None:
    whole = logits(load(str(folder))[0])
    here, there = str(mx.default_stream(mx.default_device())), mx.new_stream(mx.cpu)
    num_layers = len(load(str(folder), lazy=True)[0].layers)
    for gpu_layers in range(num_layers + 1):
        model = load(str(folder))[0]
        seen = watch(model)
        cpu_gpu.install(model, gpu_layers, there)
        split = logits(model)
        assert mx.allclose(split, whole, rtol=1e-4, atol=1e-4), gpu_layers
        wanted = {(i, here if i < gpu_layers else str(there)) for i in range(num_layers)}
        assert set(seen) == wanted


PROMPTS = ("the quick brown fox", "hello world " * 90, "lazy dogs jump over " * 12)


def answers(folder, **options) -> list[str]:
    """A batch, and then a prompt again that its prefix is found for."""
    jobs = [
        GenerateJob(f"r{i}", prompt, GREEDY, max_tokens=24, ignore_eos=True)
        for i, prompt in enumerate(PROMPTS)
    ]
    again = GenerateJob("again", PROMPTS[1], GREEDY, max_tokens=24, ignore_eos=True)
    with EngineHarness(folder, prefix_cache_bytes=1 << 24, **options) as engine:
        found = [answer.content for answer in engine.run(*jobs)]
        (hit,) = engine.run(again)
        assert hit.started.cached_tokens > 0
        return [*found, hit.content]


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_next"])
def test_batches_and_prefix_hits_give_the_same_text_when_split(name, tmp_path) -> None:
    folder = make_model(name, tmp_path, max_position_embeddings=1024)
    whole = answers(folder)
    for gpu_layers in (0, CONFIGS[name]["num_hidden_layers"] // 2):
        assert answers(folder, gpu_layers=gpu_layers) == whole


def test_compressed_kv_gives_the_same_logits_when_split_alone_and_in_a_batch(tmp_path) -> None:
    folder = make_model("llama", tmp_path, max_position_embeddings=1024)
    whole = compressed_logits(load(str(folder))[0])
    for gpu_layers in range(3):
        model = load(str(folder))[0]
        cpu_gpu.install(model, gpu_layers, mx.new_stream(mx.cpu))
        assert mx.allclose(compressed_logits(model), whole, rtol=1e-4, atol=1e-4), gpu_layers


def compressed_logits(model) -> mx.array:
    """Of decode steps of two sequences, each alone and then both together."""
    turboquant.install(model)
    rows, found = [], []
    for length in (300, 190):
        caches = turboquant.make_caches(model, "k4v3").caches
        model(mx.array([[7 + 13 * i % 300 for i in range(length)]]), cache=caches)
        found += [model(mx.array([[token]]), cache=caches) for token in (5, 9, 200)]
        assert all(cache.num_compressed for cache in caches)
        rows.append(caches)
    merged = [type(a).merge([a, b]) for a, b in zip(*rows, strict=True)]
    found += [model(mx.array([[token], [token + 1]]), cache=merged)[:1] for token in range(70)]
    return mx.concatenate(found, axis=1)


def test_the_loaded_model_says_where_its_layers_are(tmp_path) -> None:
    with EngineHarness(make_model("llama", tmp_path), gpu_layers=1) as engine:
        assert "1 of 2 layers on the accelerator, 1 on the CPU" in engine.session.facts.notes


def test_more_layers_than_there_are_and_layers_from_disk_are_refused_by_name(tmp_path) -> None:
    folder = make_model("qwen3_moe", tmp_path)
    for options, kind, words in (
        ({"gpu_layers": 3}, FaultKind.INVALID, "the model has 2"),
        ({"gpu_layers": 1, "stream_experts": "on"}, FaultKind.UNSUPPORTED, "--stream-experts off"),
    ):
        with pytest.raises(EngineFault, match=words) as refused:
            EngineHarness(folder, **options)
        assert refused.value.kind is kind
        assert refused.value.param == "gpu_layers"


def test_kernels_are_left_to_the_gpu_and_plain_ops_take_the_layers_on_the_cpu() -> None:
    class Kernels(PlainBackend):
        pass

    kernels = Kernels()
    backend = DeviceBackend(kernels)
    assert type(backend._here()) is PlainBackend  # this test runs on the CPU
    assert backend.key_order == kernels.key_order


@pytest.mark.parametrize("switch", [mx.enable_compile, mx.disable_compile])
def test_compilation_stays_as_it_was_switched(tmp_path, switch):
    model, _ = load(str(make_model("llama", tmp_path)))
    switch()
    try:
        cpu_gpu.install(model, 1, mx.new_stream(mx.cpu))
        mx.eval(model(mx.array([PROMPT[:5]])))
        assert cpu_gpu._compiles() is (switch is mx.enable_compile)
    finally:
        mx.enable_compile()
