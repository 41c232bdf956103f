"""Rows with drafts and rows without go through one pass, and each says what it says alone."""

from __future__ import annotations

import pytest
from engine_harness import Answer, EngineHarness
from planted_drafts import plant
from tiny_models import NAMES, make_model

from swiftlm_engine.messages import GenerateJob
from swiftlm_engine.sampling.settings import SamplingSettings

SETTINGS = {
    "greedy": SamplingSettings(temperature=0.0),
    "sampled": SamplingSettings(temperature=0.8, seed=3),
}
# Exact KV of every token, which the model's attention takes row by row.
PLAIN = ["llama", *(pytest.param(n, marks=pytest.mark.slow) for n in ("qwen2", "qwen3_moe"))]


def job(number: int, settings: SamplingSettings, **more: object) -> GenerateJob:
    prompt = tuple(20 + (i * i + 31 * number) % 250 for i in range(5 + 17 * number))
    more = {"max_tokens": 20 + 7 * number} | more
    return GenerateJob(
        f"r{number}", prompt, settings, ignore_eos=True, return_token_ids=True, raw_text=True,
        **more,
    )  # type: ignore[arg-type]  # fmt: skip


def ids(answer: Answer) -> list[int]:
    return [token for delta in answer.deltas for token in delta.token_ids]


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("rows", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_rows_with_drafts_say_what_they_say_alone(name, kind, rows, tmp_path):
    folder, settings = make_model(name, tmp_path), SETTINGS[kind]
    with EngineHarness(folder, draft="ngram", parallel=rows, prefix_cache_bytes=16 << 20) as engine:
        engine.session.runner.batch._speculator = None
        jobs = [job(number, settings) for number in range(rows)]
        alone = [ids(engine.run(one)[0]) for one in jobs]
        # Every other row has a drafter that knows something.
        plant(
            engine, [(list(one.prompt), said) for one, said in zip(jobs, alone, strict=True)][::2]
        )
        together = engine.run(*jobs)
        assert [ids(answer) for answer in together] == alone
        timings = [answer.finished.timings for answer in together]
        assert all(0 < one.draft_accepted < one.draft_tokens for one in timings[::2])
        assert all(one.draft_tokens == 0 for one in timings[1::2])
        again = engine.run(*jobs)  # hits of what was kept
        assert [ids(answer) for answer in again] == alone
        assert engine.session.prefix.stats().refused_stores == {}
        assert engine.session.runner.num_open == 0


def test_texts_that_end_inside_drafts_leave_their_batch_without_what_came_behind(tmp_path):
    settings = SETTINGS["greedy"]
    with EngineHarness(
        make_model("llama", tmp_path), draft="ngram", parallel=4, prefix_cache_bytes=16 << 20
    ) as engine:
        engine.session.runner.batch._speculator = None
        jobs = [job(number, settings, max_tokens=50) for number in range(4)]
        alone = [engine.run(one)[0] for one in jobs]
        plant(engine, [(list(o.prompt), ids(a)) for o, a in zip(jobs, alone, strict=True)], 8)
        stops = [answer.content[9 + 5 * n : 12 + 5 * n] for n, answer in enumerate(alone)]
        ended = engine.run(
            *(job(n, settings, max_tokens=50, stop=(stop,)) for n, stop in enumerate(stops))
        )
        for answer, whole, stop in zip(ended, alone, stops, strict=True):
            assert answer.content == whole.content[: whole.content.index(stop)]
        assert engine.session.prefix.stats().refused_stores == {}
        assert [ids(answer) for answer in engine.run(*jobs)] == [ids(answer) for answer in alone]


FAMILIES = [pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_of_every_family_say_the_same_where_drafts_are_looked_up(name, tmp_path):
    """Greedy texts of random weights repeat themselves, so that many drafts hold."""
    folder, settings = make_model(name, tmp_path), SETTINGS["greedy"]
    jobs = [job(number, settings, max_tokens=60) for number in range(4)]
    with EngineHarness(folder, parallel=4, prefix_cache_bytes=16 << 20) as engine:
        plain = [ids(engine.run(one)[0]) for one in jobs]
    with EngineHarness(folder, draft="ngram", parallel=4, prefix_cache_bytes=16 << 20) as engine:
        assert [ids(engine.run(one)[0]) for one in jobs] == plain
        for _ in range(2):  # the second time behind hits
            assert [ids(answer) for answer in engine.run(*jobs)] == plain
        assert engine.session.prefix.stats().refused_stores == {}
