"""Greedy text equals mlx-lm's own loop, alone, batched, chunked and after a prefix hit."""

from __future__ import annotations

import mlx.core as mx
import pytest
from engine_harness import EngineHarness
from mlx_lm.generate import generate_step
from mlx_lm.utils import load
from tiny_models import NAMES, make_model

from swiftlm_engine.generation import EndReason, GenerateJob
from swiftlm_engine.runner import Runner
from swiftlm_engine.sampling.settings import SamplingSettings

GREEDY = SamplingSettings(temperature=0.0)
PROMPTS = (
    "the quick brown fox",
    "hello world, this is a much longer prompt that spans several chunks of prefill " * 2,
    "a",
    "lazy dogs jump over the assistant",
)
NUM_TOKENS = 24


def reference(folder, prompt_ids, num_tokens=NUM_TOKENS):
    model, _ = load(str(folder))
    steps = generate_step(mx.array(prompt_ids), model, max_tokens=num_tokens)
    return [token for token, _ in steps]


def job(name, prompt, **options):
    options.setdefault("sampling", GREEDY)
    options.setdefault("max_tokens", NUM_TOKENS)
    return GenerateJob(name, prompt, ignore_eos=True, return_token_ids=True, **options)


def submit_all(engine, prepared):
    """Within one call, so that no step comes between."""
    for one in prepared:
        engine.submit(one)


def ids_of(answer):
    return [token_id for delta in answer.deltas for token_id in delta.token_ids]


@pytest.fixture(scope="module", params=sorted(NAMES))
def folder(request, tmp_path_factory):
    return make_model(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def expected(folder):
    _, tokenizer = load(str(folder))
    return [reference(folder, tokenizer.encode(prompt)) for prompt in PROMPTS]


def test_text_alone_equals_mlx_lm(folder, expected):
    with EngineHarness(folder) as engine:
        for i, prompt in enumerate(PROMPTS):
            (answer,) = engine.run(job(f"r{i}", prompt))
            assert ids_of(answer) == expected[i]
            assert answer.finished.reason is EndReason.LENGTH


def test_short_prompts_that_share_a_pass_give_the_text_of_each_alone(tmp_path, monkeypatch):
    folder = make_model("llama", tmp_path / "llama")
    _, tokenizer = load(str(folder))
    prompts = ["a", "lazy dogs jump over", "the quick brown fox", "zebras", "x" * 40]
    passes = []
    together = Runner._prefill_together
    monkeypatch.setattr(
        Runner,
        "_prefill_together",
        lambda self, chunks: passes.append(len(chunks)) or together(self, chunks),
    )
    with EngineHarness(folder, prefix_cache_bytes=10**7) as engine:
        for turn in range(2):  # the second time from the prefix cache
            prepared = [
                engine.session.preparer.prepare(job(f"{turn}.{i}", prompt))
                for i, prompt in enumerate(prompts)
            ]
            engine.mlx.call(submit_all, engine.session.engine, prepared).result(60)
            answers = engine.collect(len(prompts))
            for i, prompt in enumerate(prompts):
                expected = reference(folder, tokenizer.encode(prompt))
                assert ids_of(answers[f"{turn}.{i}", 0]) == expected
    assert max(passes) > 2


def test_text_in_a_batch_equals_text_alone(folder, expected):
    with EngineHarness(folder) as engine:
        jobs = [job(f"r{i}", prompt) for i, prompt in enumerate(PROMPTS)]
        jobs.append(job("short", PROMPTS[0], max_tokens=3))
        answers = engine.run(*jobs)
        assert [ids_of(answer) for answer in answers[:4]] == expected
        assert ids_of(answers[4]) == expected[0][:3]
        assert engine.session.runner.num_open == 0


def test_text_of_chunked_prefill_equals_whole(folder, expected):
    with EngineHarness(folder, prefill_chunk=16) as engine:
        answers = engine.run(*(job(f"r{i}", prompt) for i, prompt in enumerate(PROMPTS)))
        assert [ids_of(answer) for answer in answers] == expected


def test_text_after_a_prefix_hit_equals_cold(folder, expected):
    with EngineHarness(folder, prefix_cache_bytes=64 << 20) as engine:
        cold = engine.run(*(job(f"a{i}", prompt) for i, prompt in enumerate(PROMPTS)))
        warm = engine.run(*(job(f"b{i}", prompt) for i, prompt in enumerate(PROMPTS)))
        assert [ids_of(answer) for answer in cold] == expected
        assert [ids_of(answer) for answer in warm] == expected
        assert warm[1].started.cached_tokens > 0
