"""Drafts change no text in any family: full attention, windows, recurrent states, and mixtures.

Half of the drafts are wrong somewhere, so that every kind of cache has to go back, time and again.
"""

from __future__ import annotations

from collections import defaultdict

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
QUICK = ("llama", "gemma3_text", "llama4", "qwen3_next", "mamba2")  # each goes back in another way
CASES = [
    pytest.param(name, kind, marks=() if name in QUICK and kind == "greedy" else pytest.mark.slow)
    for name in NAMES
    for kind in SETTINGS
]
FEW = [
    name if name in ("gemma3_text", "qwen3_next") else pytest.param(name, marks=pytest.mark.slow)
    for name in NAMES
]
PROMPT = [20 + (i * i) % 250 for i in range(45)]  # longer than the windows
NEW = 60


def job(name: str, prompt: list[int], settings: SamplingSettings, **more: object) -> GenerateJob:
    more = {"max_tokens": NEW} | more
    return GenerateJob(
        name, tuple(prompt), settings, ignore_eos=True, return_token_ids=True, raw_text=True, **more
    )  # type: ignore[arg-type]


def ids(answer: Answer) -> list[int]:
    return [token for delta in answer.deltas for token in delta.token_ids]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_drafts_change_no_text(name, kind, tmp_path):
    settings = SETTINGS[kind]
    with EngineHarness(make_model(name, tmp_path), prefix_cache_bytes=16 << 20) as engine:
        (plain,) = engine.run(job("plain", PROMPT, settings, no_cache=True))
        answer = ids(plain)
        assert len(answer) == NEW
        plant(engine, [(PROMPT, answer)])
        (drafted,) = engine.run(job("drafted", PROMPT, settings))
        timings = drafted.finished.timings
        assert ids(drafted) == answer
        assert 0 < timings.draft_accepted < timings.draft_tokens
        if kind == "sampled":
            return  # what goes on from here draws other noise
        # What was kept is the text, and nothing of what was rejected.
        shorter = {"max_tokens": NEW - 40}
        (hit,) = engine.run(job("hit", PROMPT + answer[:40], settings, **shorter))
        assert hit.started.cached_tokens > 0
        assert ids(hit) == answer[40:]


@pytest.mark.parametrize("name", FEW)
def test_a_text_that_ends_inside_a_draft_is_kept_without_what_came_behind(name, tmp_path):
    settings = SETTINGS["greedy"]
    with EngineHarness(make_model(name, tmp_path), prefix_cache_bytes=16 << 20) as engine:
        (plain,) = engine.run(job("plain", PROMPT, settings, no_cache=True))
        answer = ids(plain)
        plant(engine, [(PROMPT, answer)], 8)
        for at in (9, 23):
            stop = plain.content[at : at + 3]
            (ended,) = engine.run(job(f"ends{at}", PROMPT, settings, stop=(stop,)))
            assert ended.content == plain.content[: plain.content.index(stop)]
            assert engine.session.prefix.stats().refused_stores == {}
        engine.mlx.call(engine.session.prefix.check_integrity).result(60)
        (whole,) = engine.run(job("whole", PROMPT, settings))
        assert ids(whole) == answer
        (hit,) = engine.run(job("hit", PROMPT + answer[:30], settings, max_tokens=NEW - 30))
        assert ids(hit) == answer[30:]


@pytest.mark.parametrize("name", FEW)
def test_rows_come_and_go_between_drafts(name, tmp_path):
    settings = SETTINGS["greedy"]
    with EngineHarness(make_model(name, tmp_path), prefix_cache_bytes=0) as engine:
        other = job("other", PROMPT[:20], settings, max_tokens=6)
        (plain,) = engine.run(job("plain", PROMPT, settings))
        (alone,) = engine.run(other)
        plant(engine, [(PROMPT, ids(plain))])
        engine.submit(job("a", PROMPT, settings))
        said: dict[str, list[int]] = defaultdict(list)

        def hear(num_ends: int) -> None:
            for (name, _), heard in engine.collect(num_ends).items():
                said[name] += ids(heard)

        for number in range(3):  # each comes while the first one drafts, and leaves
            engine.submit(job(f"b{number}", PROMPT[:20], settings, max_tokens=6))
            hear(1)
        hear(1)
        expected = {f"b{number}": ids(alone) for number in range(3)} | {"a": ids(plain)}
        assert said == expected
