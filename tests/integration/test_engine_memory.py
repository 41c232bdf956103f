"""Memory of sequences: a preempted one loses no token, one that can never fit is told the sum."""

from __future__ import annotations

import random
from dataclasses import replace

import mlx.core as mx
import pytest
from engine_harness import EngineHarness
from tiny_models import make_model

from swiftlm_engine.messages import EndReason, EngineFault, FaultKind, GenerateJob
from swiftlm_engine.sampling.settings import SamplingSettings

SETTINGS = {
    "greedy": SamplingSettings(temperature=0.0),
    "sampled": SamplingSettings(temperature=1.0, seed=7),
    "penalised": SamplingSettings(
        temperature=0.8, seed=3, frequency_penalty=0.5, repetition_penalty=1.2
    ),
}


@pytest.fixture(scope="module", params=["llama", "qwen3_next"])
def folder(request, tmp_path_factory):
    return make_model(request.param, tmp_path_factory.mktemp(request.param))


def jobs(settings):
    return [
        GenerateJob(f"r{i}", f"prompt number {i} says", settings, max_tokens=60, ignore_eos=True)
        for i in range(4)
    ]


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("cache_bytes", [0, 32 << 20])
def test_text_is_the_same_when_sequences_are_preempted(folder, kind, cache_bytes):
    with EngineHarness(folder) as engine:
        free = [answer.content for answer in engine.run(*jobs(SETTINGS[kind]))]
    with EngineHarness(folder, kv_budget_bytes=160, prefix_cache_bytes=cache_bytes) as engine:
        scheduler = engine.session.engine.scheduler
        scheduler.limits = replace(scheduler.limits, reserve_tokens=8)
        scheduler._price = lambda prompt, new: prompt + new  # real caches grow by 256 tokens
        preempted = []
        original = engine.session.runner.preempt
        engine.session.runner.preempt = lambda s: (preempted.append(s.key), original(s))
        tight = [answer.content for answer in engine.run(*jobs(SETTINGS[kind]))]
        assert preempted, "the budget was not tight enough to prove anything"
        assert engine.session.runner.num_open == 0
        assert scheduler._gate.reserved_bytes == 0
    assert tight == free


def test_request_that_can_never_fit_is_refused_with_the_sum(folder):
    with EngineHarness(folder, kv_budget_bytes=1000) as engine:
        with pytest.raises(EngineFault) as refused:
            engine.run(*jobs(SETTINGS["greedy"]))
        assert refused.value.kind is FaultKind.NOT_ENOUGH_MEMORY
        assert "short" in refused.value.message


def test_answer_that_outgrows_the_budget_uses_all_of_it_and_ends_as_one_of_full_length(folder):
    with EngineHarness(folder, kv_budget_bytes=150) as engine:
        scheduler = engine.session.engine.scheduler
        scheduler.limits = replace(scheduler.limits, reserve_tokens=64)
        scheduler._price = lambda prompt, new: prompt + new
        job = GenerateJob("r", tuple(range(5, 25)), SETTINGS["greedy"], 500, ignore_eos=True)
        [answer] = engine.run(job)
        assert answer.finished.reason is EndReason.LENGTH
        assert answer.finished.fault is None
        assert 127 <= answer.finished.usage.completion_tokens <= 130
        assert answer.content
        with pytest.raises(EngineFault) as refused:
            engine.run(replace(job, prompt=tuple(range(5, 125))))
    assert refused.value.message.startswith("184 tokens need")  # 120 and the next 64
    assert engine.session.engine.counters.aborted == 0


def test_many_requests_leave_no_rows_and_no_memory(folder):
    with EngineHarness(folder, prefix_cache_bytes=1 << 20) as engine:
        for _ in range(5):
            for answer in engine.run(*jobs(SETTINGS["greedy"])):
                assert answer.finished.reason is EndReason.LENGTH
                assert answer.num_finished == 1
        assert engine.session.runner.num_open == 0
        assert engine.session.prefix.nbytes <= 1 << 20
        engine.session.prefix.check_integrity()


def test_five_hundred_requests_with_disconnects_give_all_memory_back(folder):
    dice = random.Random(1)
    with EngineHarness(folder, prefix_cache_bytes=1 << 20, max_queue=1000) as engine:
        engine.run(*jobs(SETTINGS["greedy"]))
        baseline = _active_memory(engine)
        for start in range(0, 500, 50):
            batch = [
                GenerateJob(
                    f"r{i}",
                    "word " * dice.randint(1, 40),
                    SETTINGS[dice.choice(sorted(SETTINGS))],
                    max_tokens=dice.randint(1, 12),
                    ignore_eos=True,
                )
                for i in range(start, start + 50)
            ]
            engine.submit(*batch)
            for job in batch:
                if dice.random() < 0.3:
                    engine.abort(job.request_id)
            answers = engine.collect(50)
            assert all(answer.num_finished == 1 for answer in answers.values())
        assert engine.session.runner.num_open == 0
        assert not engine.session.engine.choices
        assert _active_memory(engine) <= 1.02 * baseline


def _active_memory(engine) -> int:
    """Bytes that MLX holds when nothing runs and the prefix cache is empty."""

    def measure() -> int:
        engine.session.prefix.clear()
        mx.synchronize()
        return mx.get_active_memory()

    return engine.mlx.call(measure).result(60)
