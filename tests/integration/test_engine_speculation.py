"""Speculation keeps the text: greedy and seeded samples are identical with and without."""

from __future__ import annotations

import pytest
from engine_harness import EngineHarness
from tiny_models import make_model

from swiftlm_engine.messages import GenerateJob
from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.speculation.ngram import NgramDrafter

SETTINGS = {
    "greedy": SamplingSettings(temperature=0.0),
    "sampled": SamplingSettings(temperature=0.7, top_p=0.9, seed=11),
    "biased": SamplingSettings(temperature=0.0, logit_bias=((42, 3.0),)),
    "penalised": SamplingSettings(temperature=0.0, frequency_penalty=0.7),
}
REPETITIVE = "the quick brown fox jumps over the lazy dog " * 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model("llama", tmp_path_factory.mktemp("llama"))


def texts(folder, settings, **options):
    with EngineHarness(folder, **options) as engine:
        jobs = [
            GenerateJob("a", REPETITIVE, settings, max_tokens=80, ignore_eos=True),
            GenerateJob("b", REPETITIVE, settings, max_tokens=80),
            GenerateJob("c", "x", settings, max_tokens=40, stop=("e",), ignore_eos=True),
        ]
        alone = [engine.run(job)[0] for job in jobs]
        together = engine.run(*jobs)
        drafted = sum(answer.finished.timings.draft_tokens for answer in alone)
        assert engine.session.runner.num_open == 0
    said = [(a.content, a.finished.usage.completion_tokens) for a in alone]
    assert [(a.content, a.finished.usage.completion_tokens) for a in together] == said
    return said, drafted


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("cache_bytes", [0, 16 << 20])
def test_ngram_drafts_change_no_text(folder, kind, cache_bytes):
    plain, _ = texts(folder, SETTINGS[kind])
    drafted, num_drafted = texts(
        folder, SETTINGS[kind], draft="ngram", prefix_cache_bytes=cache_bytes
    )
    assert drafted == plain
    # Random weights repeat themselves only when greedy; penalised rows never speculate.
    assert (num_drafted > 0) == (kind in ("greedy", "biased"))


@pytest.mark.parametrize("kind", ["greedy", "sampled"])
def test_draft_model_changes_no_text(folder, kind, tmp_path):
    other = make_model("llama", tmp_path / "other", hidden_size=32, num_hidden_layers=1)
    plain, _ = texts(folder, SETTINGS[kind])
    for draft in (folder, other):  # one that is always right, one that is nearly always wrong
        drafted, num_drafted = texts(folder, SETTINGS[kind], draft=str(draft))
        assert drafted == plain
        assert num_drafted > 0


def test_draft_of_itself_is_always_accepted(folder):
    with EngineHarness(folder, draft=str(folder), draft_tokens=3) as engine:
        job = GenerateJob("a", "x", SETTINGS["greedy"], max_tokens=9, ignore_eos=True)
        timings = engine.run(job)[0].finished.timings
        assert timings.draft_accepted == timings.draft_tokens > 0


@pytest.mark.parametrize("name", ["gemma3_text", "qwen3_next"])
def test_draft_model_may_have_windows_and_recurrent_layers(name, tmp_path):
    """Its guesses leave no trace in its own caches: of itself each one holds."""
    folder = make_model(name, tmp_path)
    with EngineHarness(folder, draft=str(folder), draft_tokens=3) as engine:
        job = GenerateJob("a", REPETITIVE * 2, SETTINGS["greedy"], max_tokens=24, ignore_eos=True)
        timings = engine.run(job)[0].finished.timings
        assert timings.draft_accepted == timings.draft_tokens > 0


def test_draft_model_that_costs_more_than_it_brings_is_switched_off(folder, tmp_path):
    other = make_model("llama", tmp_path / "other", num_hidden_layers=6)
    with EngineHarness(folder, draft=str(other)) as engine:
        job = GenerateJob("a", "x", SETTINGS["greedy"], max_tokens=200, ignore_eos=True)
        timings = engine.run(job)[0].finished.timings
        assert not engine.session.runner._speculator.worth_trying
    assert 0 < timings.draft_tokens < 4 * 30


def test_ngram_proposes_what_followed_last_time():
    drafter = NgramDrafter()
    drafter.extend([1, 2, 3, 4, 5, 9, 1, 2, 3])
    assert drafter.propose(2) == [4, 5]
    drafter.extend([7])
    assert drafter.propose(2) == []
