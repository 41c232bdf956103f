"""TurboQuant inside the engine: compressed rows alone, in a batch, after a prefix hit, with drafts.

A hit is not bit-equal to a cold run here, and cannot be: it serves tokens that an earlier request
has compressed already, where a cold run still holds its last 64 to 127 tokens exactly. What it may
cost is the codec's own error, so the tolerance is on the log-probabilities.
"""

from __future__ import annotations

import pytest
from engine_harness import EngineHarness
from tiny_models import make_model

from swiftlm_engine.messages import EngineFault, FaultKind, GenerateJob
from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.turboquant import policy

GREEDY = SamplingSettings(temperature=0.0)
# Where a prompt is cut depends on the speed of the machine unless a slice is long; and a token is
# attended exactly by its own chunk, so that other cuts mean other text.
STEADY_MS = 600_000
PROMPTS = [
    "the quick brown fox jumps over the lazy dog " * 60,
    "hello world " * 30,
    "x",
]


@pytest.fixture(scope="module", autouse=True)
def _random_weights_pass_the_self_test():
    """Their next tokens hang on nothing; what the self-test decides is tested in test_kv_choice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "MAX_KLD", 1.0)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    # A head size of 64 and four layers, as the smallest real models have.
    return make_model(
        "llama",
        tmp_path_factory.mktemp("turbo"),
        max_position_embeddings=4096,
        head_dim=64,
    )


def jobs(prefix):
    return [
        GenerateJob(f"{prefix}{i}", prompt, GREEDY, max_tokens=90, ignore_eos=True)
        for i, prompt in enumerate(PROMPTS)
    ]


@pytest.fixture(scope="module")
def alone(folder):
    with EngineHarness(folder, slice_ms=STEADY_MS, kv="k4v3") as engine:
        return [engine.run(job)[0].content for job in jobs("a")]


def test_compressed_text_in_a_batch_equals_text_alone(folder, alone):
    with EngineHarness(folder, slice_ms=STEADY_MS, kv="k4v3") as engine:
        assert [answer.content for answer in engine.run(*jobs("b"))] == alone


def first_logprobs(engine, name):
    job = GenerateJob(name, PROMPTS[0], GREEDY, max_tokens=1, top_logprobs=20, ignore_eos=True)
    (answer,) = engine.run(job)
    (one,) = answer.deltas[0].logprobs
    return answer.started.cached_tokens, {t.token_id: t.logprob for t in one.top}


def mean_error(exact, other):
    common = exact.keys() & other.keys()
    assert len(common) >= 12
    return sum(abs(exact[i] - other[i]) for i in common) / len(common)


def test_prefix_hit_of_compressed_rows_stays_within_the_error_of_the_codec(folder):
    with EngineHarness(folder, kv="fp16") as engine:
        _, exact = first_logprobs(engine, "exact")
    with EngineHarness(folder, slice_ms=STEADY_MS, kv="k4v3") as engine:
        _, cold = first_logprobs(engine, "cold")
    with EngineHarness(
        folder, slice_ms=STEADY_MS, kv="k4v3", prefix_cache_bytes=64 << 20
    ) as engine:
        engine.run(*jobs("c"))
        cached, warm = first_logprobs(engine, "warm")
    assert cached > 0
    assert 0 < mean_error(exact, warm) < 2 * mean_error(exact, cold)


def test_compressed_rows_hold_less_than_half_of_the_plain_bytes(folder):
    held = {}
    for kv in ("fp16", "k4v3"):
        with EngineHarness(folder, kv=kv) as engine:
            held[kv] = 0
            step = engine.session.runner.decode

            def measured(engine=engine, kv=kv, step=step):
                held[kv] = max(held[kv], engine.session.runner.kv_bytes())
                return step()

            engine.session.runner.decode = measured
            engine.run(GenerateJob("r", PROMPTS[0] * 3, GREEDY, max_tokens=9, ignore_eos=True))
    assert held["k4v3"] < 0.5 * held["fp16"]


def test_ngram_drafts_change_no_compressed_text(folder, alone):
    with EngineHarness(folder, slice_ms=STEADY_MS, kv="k4v3", draft="ngram") as engine:
        assert [engine.run(job)[0].content for job in jobs("e")] == alone


def test_format_that_does_not_exist_is_refused_with_those_that_do(folder):
    with pytest.raises(EngineFault) as refused:
        EngineHarness(folder, kv="k1v1")
    assert refused.value.kind is FaultKind.INVALID
    assert "k4v3" in refused.value.message


def test_model_that_compresses_nowhere_is_refused_by_name(tmp_path):
    with pytest.raises(EngineFault) as refused:
        EngineHarness(make_model("llama", tmp_path / "m", head_dim=20), kv="k4v3")
    assert refused.value.kind is FaultKind.UNSUPPORTED
    assert "--kv fp16" in refused.value.message


def test_aborted_compressed_row_leaves_nothing_behind(folder, alone):
    with EngineHarness(folder, slice_ms=STEADY_MS, kv="k4v3") as engine:
        endless = GenerateJob("gone", PROMPTS[0], GREEDY, max_tokens=2000, ignore_eos=True)
        engine.submit(endless)
        assert engine.abort("gone")
        engine.collect(1)
        runner = engine.session.runner
        assert (runner.num_open, runner.kv_bytes(), runner.kv_compressed_tokens()) == (0, 0, 0)
        assert engine.run(jobs("after")[0])[0].content == alone[0]


def test_status_counts_tokens_that_are_really_compressed(folder):
    with EngineHarness(folder, slice_ms=STEADY_MS, kv="k4v3") as engine:
        seen = []
        step = engine.session.runner.decode

        def measured():
            seen.append(engine.session.runner.kv_compressed_tokens())
            return step()

        engine.session.runner.decode = measured
        job = GenerateJob("r", PROMPTS[0], GREEDY, max_tokens=3, ignore_eos=True)
        (answer,) = engine.run(job)
        prompt = answer.started.prompt_tokens
    assert max(seen) == (prompt - 1 - 68) // 64 * 64
    assert max(seen) > 0.8 * prompt
