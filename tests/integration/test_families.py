"""One suite for every family: a tiny instance of it says what mlx-lm says, however it is served.

float32 on the CPU, so greedy text is equal token for token.
"""

from __future__ import annotations

import mlx.core as mx
import pytest
from engine_harness import EngineHarness
from mlx_lm import load
from mlx_lm.generate import generate_step
from tiny_models import NAMES, make_model

from swiftlm_engine import turboquant
from swiftlm_engine.brain.facts import read_model
from swiftlm_engine.brain.plan.expert_families import streams_experts
from swiftlm_engine.messages import EndReason, EngineFault, GenerateJob
from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.turboquant import policy
from swiftlm_engine.turboquant.self_test_text import SELF_TEST_TEXT

GREEDY = SamplingSettings(temperature=0.0)
PROMPTS = (
    "the quick brown fox",
    "hello world, this is a much longer prompt that spans several chunks of prefill " * 2,
    "a",
    "lazy dogs jump over the assistant",
)
NUM_TOKENS = 24
COMPRESSED_TOKENS = 256
# Of the attention's output, relative; random keys of 16 to 64 dimensions are the hardest there are.
COMPRESSED_ERROR = 0.2


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def folder(name, tmp_path_factory):
    return make_model(name, tmp_path_factory.mktemp(name))


@pytest.fixture(scope="module")
def expected(folder):
    model, tokenizer = load(str(folder))
    found = []
    for prompt in PROMPTS:
        ids = mx.array(tokenizer.encode(prompt))
        found.append([token for token, _ in generate_step(ids, model, max_tokens=NUM_TOKENS)])
    return found


def job(request_id, prompt, **options):
    options.setdefault("max_tokens", NUM_TOKENS)
    return GenerateJob(
        request_id, prompt, sampling=GREEDY, ignore_eos=True, return_token_ids=True, **options
    )


def ids_of(answer):
    return [token_id for delta in answer.deltas for token_id in delta.token_ids]


def answers(engine, tag="r"):
    """To all prompts, asked at once."""
    return engine.run(*(job(f"{tag}{i}", prompt) for i, prompt in enumerate(PROMPTS)))


def one_by_one(engine):
    return [ids_of(engine.run(job(f"s{i}", prompt))[0]) for i, prompt in enumerate(PROMPTS)]


def test_text_alone_equals_mlx_lm(folder, expected):
    with EngineHarness(folder) as engine:
        for i, prompt in enumerate(PROMPTS):
            (answer,) = engine.run(job(f"r{i}", prompt))
            assert ids_of(answer) == expected[i]
            assert answer.finished.reason is EndReason.LENGTH


def test_text_in_a_batch_equals_text_alone(folder, expected):
    with EngineHarness(folder) as engine:
        jobs = [job(f"r{i}", prompt) for i, prompt in enumerate(PROMPTS)]
        jobs.append(job("short", PROMPTS[0], max_tokens=3))
        found = engine.run(*jobs)
        assert [ids_of(answer) for answer in found[:4]] == expected
        assert ids_of(found[4]) == expected[0][:3]
        assert engine.session.runner.num_open == 0


def test_text_of_chunked_prefill_equals_whole(folder, expected):
    with EngineHarness(folder, prefill_chunk=16) as engine:
        assert [ids_of(answer) for answer in answers(engine)] == expected


def test_text_after_a_prefix_hit_equals_cold(folder, expected):
    with EngineHarness(folder, prefix_cache_bytes=64 << 20) as engine:
        cold, warm = answers(engine, "a"), answers(engine, "b")
        assert [ids_of(answer) for answer in cold] == expected
        assert [ids_of(answer) for answer in warm] == expected
        assert warm[1].started.cached_tokens > 0


def test_text_with_a_layer_on_each_device_equals_whole(folder, expected):
    with EngineHarness(folder, gpu_layers=1) as engine:
        assert [ids_of(answer) for answer in answers(engine)] == expected


def test_text_with_experts_on_disk_equals_resident_or_is_refused_by_name(folder, expected):
    facts = read_model(folder)
    if streams_experts(facts):
        with EngineHarness(folder, stream_experts="on", expert_slots=3) as engine:
            assert one_by_one(engine) == expected
            assert engine.session.streaming.to_json()["misses"] > 0
        return
    said = f"model type '{facts.model_type}' (cannot be streamed|has no experts to stream)"
    with pytest.raises(EngineFault, match=said):
        EngineHarness(folder, stream_experts="experts")


def test_compressed_kv_is_within_tolerance_or_refused_by_name(folder):
    model, tokenizer = load(str(folder))
    turboquant.install(model)
    verdict = turboquant.model_verdict(model, "k4v3")
    if not verdict.num_compressed_layers:
        (reason,) = verdict.lines()
        with pytest.raises(EngineFault) as refused:
            EngineHarness(folder, kv="k4v3")
        assert reason in str(refused.value)
        return
    tokens = tokenizer.encode(SELF_TEST_TEXT)[:COMPRESSED_TOKENS]
    measured = policy.measure(model, tokens, verdict)
    assert 0 < max(measured.layer_errors) < COMPRESSED_ERROR
