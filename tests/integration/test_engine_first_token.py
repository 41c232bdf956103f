"""The first token of an answer: told before the next step is built, without a trace in the rest."""

from dataclasses import replace

import pytest
from engine_harness import EngineHarness
from tiny_models import make_model

from swiftlm_engine.messages import Delta, EndReason, GenerateJob
from swiftlm_engine.sampling.settings import SamplingSettings

GREEDY = SamplingSettings(temperature=0)
PROMPT = tuple(range(5, 45))


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = make_model("llama", tmp_path_factory.mktemp("llama"))
    with EngineHarness(folder, prefix_cache_bytes=16 << 20) as harness:
        yield harness


def test_answer_of_one_token_takes_one_pass_over_the_weights(engine, monkeypatch):
    batch, passes = engine.session.runner.batch, []
    forward = batch._forward

    def noting(inputs):
        passes.append(len(batch))
        return forward(inputs)

    monkeypatch.setattr(batch, "_forward", noting)
    (answer,) = engine.run(GenerateJob("r", PROMPT, GREEDY, max_tokens=1, ignore_eos=True))
    assert answer.finished.usage.completion_tokens == 1
    assert passes == [1]


@pytest.mark.parametrize("num_tokens", [1, 2, 3])
def test_what_an_answer_of_few_tokens_computed_is_found_again(engine, num_tokens):
    prompt = (*PROMPT, 50 + num_tokens)
    job = GenerateJob(
        "r", prompt, GREEDY, max_tokens=num_tokens, ignore_eos=True, return_token_ids=True
    )
    (answer,) = engine.run(job)
    ids = [token for delta in answer.deltas for token in delta.token_ids]
    assert len(ids) == num_tokens
    longer = (*prompt, *ids, 7, 8, 9)
    (again,) = engine.run(GenerateJob("again", longer, GREEDY, max_tokens=4, ignore_eos=True))
    held = len(prompt) + num_tokens
    assert again.started.cached_tokens == (held - 1 if num_tokens == 1 else held)
    fresh = GenerateJob("cold", longer, GREEDY, max_tokens=4, ignore_eos=True, no_cache=True)
    (cold,) = engine.run(fresh)
    assert again.content == cold.content
    assert engine.session.prefix.stats().refused_stores == {}


@pytest.mark.parametrize("num_tokens", [1, 2, 3])
def test_nothing_ends_an_answer_before_its_min_tokens_and_the_next_token_may(engine, num_tokens):
    ends = tuple(set(range(engine.session.facts.vocab_size)) - {300})
    job = GenerateJob("r", PROMPT, GREEDY, stop_token_ids=ends, min_tokens=num_tokens, max_tokens=9)
    (answer,) = engine.run(job)
    assert answer.finished.reason is EndReason.STOP
    assert answer.finished.usage.completion_tokens == num_tokens + 1  # the end counts


def test_a_prompt_is_stored_when_its_client_has_read_something(engine, monkeypatch):
    prefix, event_buffer, order = engine.session.prefix, engine.session.engine._event_buffer, []
    store, tell = prefix.store, event_buffer.emit

    def storing(ids, *rest):
        order.append(("stored", len(ids)))
        return store(ids, *rest)

    def telling(events):
        order.extend(("told", 0) for event in events if isinstance(event.news, Delta))
        tell(events)

    monkeypatch.setattr(prefix, "store", storing)
    monkeypatch.setattr(event_buffer, "emit", telling)
    prompt = (*range(60, 90), 3)
    job = GenerateJob("r", prompt, GREEDY, max_tokens=5, ignore_eos=True, return_token_ids=True)
    engine.run(job)
    assert order[0] == ("told", 0)
    stored = [length for what, length in order if what == "stored"]
    assert stored == [len(prompt) + 2, len(prompt) + 5]  # alone it decodes in the very same caches


def test_eight_identical_prompts_that_are_in_the_cache_all_end_at_once(engine):
    prompt = (*PROMPT, 60)
    job = GenerateJob("warm", prompt, GREEDY, max_tokens=1, ignore_eos=True, return_token_ids=True)
    (warm,) = engine.run(job)
    answers = engine.run(*(replace(job, request_id=f"r{i}") for i in range(8)))
    assert {answer.deltas[0].token_ids for answer in answers} == {warm.deltas[0].token_ids}
    assert {answer.finished.usage.cached_tokens for answer in answers} == {len(prompt) - 1}
    assert not engine.session.engine.choices
    assert engine.session.runner.num_open == 0
