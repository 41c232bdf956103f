"""Output semantics through the real engine on random weights: whatever the model says, it holds."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import mlx.core as mx
import pytest
from engine_harness import EngineHarness
from tiny_models import CHATML, SPECIAL_TOKENS, make_model

from swiftlm_engine.messages import (
    Delta,
    EndReason,
    EngineFault,
    Event,
    FaultKind,
    GenerateJob,
    Grammar,
    GrammarKind,
    ToolCallPart,
    ToolChoice,
)
from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.server import wire
from swiftlm_engine.text.chat import Chat, Message, TextPart, ToolSpec
from swiftlm_engine.text.output_parser import OutputParser
from swiftlm_proto import messages as m

GREEDY = SamplingSettings(temperature=0.0)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL_SCHEMA = {
    "type": "object",
    "properties": {"level": {"enum": ["low", "high"]}, "age": {"type": "integer"}},
    "required": ["level", "age"],
    "additionalProperties": False,
}
TOOL = ToolSpec("lookup", "Looks a person up.", TOOL_SCHEMA)
QUESTION = Chat((Message("user", (TextPart("hello world"),)),))


@pytest.fixture(scope="module")
def folder_of_llama(tmp_path_factory):
    return make_model("llama", tmp_path_factory.mktemp("llama"), max_position_embeddings=1024)


@pytest.fixture(scope="module")
def engine(folder_of_llama):
    with EngineHarness(folder_of_llama, prefix_cache_bytes=16 << 20, max_queue=200) as harness:
        yield harness


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """A model whose template knows thoughts."""
    folder = make_model(
        "llama",
        tmp_path_factory.mktemp("thinker"),
        template=CHATML + "{# <think> #}",
        max_position_embeddings=1024,
    )
    with EngineHarness(folder, max_queue=200) as harness:
        yield harness


def sampled(seed, temperature=1.0):
    return SamplingSettings(temperature=temperature, seed=seed)


@pytest.mark.parametrize(
    "seeds", [range(40), pytest.param(range(40, 200), marks=pytest.mark.slow)], ids=len
)
def test_samples_of_random_weights_follow_the_schema(engine, seeds):
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
    jobs = [
        GenerateJob(f"r{i}", QUESTION, sampled(i), max_tokens=400, grammar=grammar) for i in seeds
    ]
    for answer in engine.run(*jobs):
        assert answer.finished.reason is EndReason.STOP
        person = json.loads(answer.content)
        assert set(person) == {"name", "age"}
        assert isinstance(person["age"], int)


def test_choice_and_regex_are_kept(engine):
    either = Grammar(GrammarKind.CHOICE, choices=("red", "green"))
    digits = Grammar(GrammarKind.REGEX, r"[0-9]{3}")
    answers = engine.run(
        GenerateJob("a", "pick", sampled(1), max_tokens=20, grammar=either),
        GenerateJob("b", "pick", sampled(2), max_tokens=20, grammar=digits),
    )
    assert answers[0].content in ("red", "green")
    assert answers[1].content.isdigit()
    assert len(answers[1].content) == 3


def test_a_finished_grammar_ends_an_answer_that_was_to_be_longer(engine):
    grammar = Grammar(GrammarKind.CHOICE, choices=("red",))
    job = GenerateJob("a", "pick", sampled(1), max_tokens=40, min_tokens=12, grammar=grammar)
    (answer,) = engine.run(replace(job, return_token_ids=True))
    ids = [token_id for delta in answer.deltas for token_id in delta.token_ids]
    assert answer.content == "red"
    assert 0 not in ids
    assert answer.finished.reason is EndReason.STOP


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("raw", [False, True])
def test_a_choice_is_exact_where_the_template_mentions_thoughts(thinker, seed, raw):
    either = Grammar(GrammarKind.CHOICE, choices=("red", "green"))
    digits = Grammar(GrammarKind.REGEX, "[0-9]{3}")
    opens = ((SPECIAL_TOKENS.index("<think>"), 50.0),)
    settings = replace(sampled(seed), logit_bias=opens) if raw else sampled(seed)
    chat, text = thinker.run(
        GenerateJob("a", QUESTION, settings, max_tokens=60, grammar=either, raw_text=raw),
        GenerateJob(
            "b", "pick", replace(settings, logit_bias=opens), max_tokens=20, grammar=digits
        ),
    )
    assert (chat.finished.reason is EndReason.LENGTH and not raw) or chat.content in (
        "red",
        "green",
    )
    assert text.content.isdigit()
    assert len(text.content) == 3


@pytest.mark.parametrize("choice", [ToolChoice.REQUIRED, ToolChoice.NAMED])
def test_forced_tool_is_called_with_arguments_of_its_schema(engine, choice):
    chat = Chat(QUESTION.messages, (TOOL,))
    jobs = [
        GenerateJob(
            f"r{i}",
            chat,
            sampled(i),
            max_tokens=400,
            tool_choice=choice,
            tool_name="lookup",
            parallel_tool_calls=False,
        )
        for i in range(10)
    ]
    for answer in engine.run(*jobs):
        parts = [part for delta in answer.deltas for part in delta.tool_calls]
        assert parts[0].name == "lookup"
        arguments = json.loads("".join(part.arguments for part in parts))
        assert arguments["level"] in ("low", "high")
        assert isinstance(arguments["age"], int)
        assert answer.finished.reason is EndReason.TOOL_CALLS


@pytest.mark.parametrize(
    "broken",
    [
        Grammar(GrammarKind.REGEX, "("),
        Grammar(GrammarKind.JSON_SCHEMA, "[1]"),
        Grammar(GrammarKind.JSON_SCHEMA, "[" * 100_000),
    ],
)
def test_grammar_that_cannot_be_enforced_is_refused_and_the_engine_goes_on(engine, broken):
    with pytest.raises(EngineFault) as refused:
        engine.run(GenerateJob("r", "x", max_tokens=4, grammar=broken))
    assert refused.value.kind is FaultKind.INVALID
    (answer,) = engine.run(GenerateJob("s", "x", max_tokens=4, ignore_eos=True))
    assert answer.finished.reason is EndReason.LENGTH


def test_a_text_that_cannot_be_ended_fails_its_request_and_no_other(engine, monkeypatch):
    whole = OutputParser.finish

    def finish(parser, reason):
        if parser._options.stop:
            raise IndexError("a parser's mistake")
        return whole(parser, reason)

    monkeypatch.setattr(OutputParser, "finish", finish)
    bad = GenerateJob("bad", "x", max_tokens=4, stop=("§",), ignore_eos=True)
    good = GenerateJob("good", "x", max_tokens=4, ignore_eos=True)
    broken, sound = engine.run(bad, good)
    assert (broken.finished.reason, broken.num_finished) == (EndReason.ERROR, 1)
    assert sound.finished.reason is EndReason.LENGTH
    engine.submit(replace(bad, request_id="left", max_tokens=500))
    engine.abort("left")
    assert engine.collect(1)["left", 0].finished.reason is EndReason.ERROR


def test_half_a_character_in_a_call_is_sent_as_the_model_wrote_it():
    part = ToolCallPart(0, "call_1", "look", '{"at": "\ud83d"}')
    message = wire.step_events([Event("r", 0, Delta(tool_calls=(part,)))])
    sent = m.StepEvents.parse(bytes(message)).events[0].delta.tool_calls[0]
    assert sent.arguments == '{"at": "\\ud83d"}'


def test_text_under_a_grammar_does_not_depend_on_neighbours(engine):
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
    bound = GenerateJob("bound", QUESTION, sampled(5), max_tokens=300, grammar=grammar)
    (alone,) = engine.run(bound)
    free = [GenerateJob(f"f{i}", "x", sampled(i), max_tokens=60) for i in range(3)]
    assert engine.run(bound, *free)[0].content == alone.content


def test_seed_gives_the_same_text_alone_and_in_a_batch(engine):
    jobs = [GenerateJob(f"r{i}", "x", sampled(i, 0.9), max_tokens=30) for i in range(5)]
    alone = [engine.run(job)[0].content for job in jobs]
    assert [answer.content for answer in engine.run(*jobs)] == alone
    assert len(set(alone)) == 5


def test_choices_of_one_request_differ_and_each_ends_once(engine):
    job = GenerateJob("n", "x", sampled(3), max_tokens=20, n=4, ignore_eos=True)
    engine.submit(job)
    answers = engine.collect(4)
    assert len({answer.content for answer in answers.values()}) == 4
    assert all(answer.num_finished == 1 for answer in answers.values())


def test_stop_string_cuts_the_text_and_ends_it(engine):
    greedy = SamplingSettings(temperature=0.0)
    (whole,) = engine.run(GenerateJob("w", "x", greedy, max_tokens=60, ignore_eos=True))
    stop = whole.content[20:23]
    (cut,) = engine.run(GenerateJob("c", "x", greedy, max_tokens=60, stop=(stop,)))
    assert cut.content == whole.content[: whole.content.index(stop)]
    assert cut.finished.reason is EndReason.STOP
    assert cut.finished.stop_sequence == stop


def test_logprobs_are_those_of_the_raw_distribution_and_match_the_text(engine):
    settings = SamplingSettings(temperature=0.0, logit_bias=((123, 50.0),))
    (answer,) = engine.run(
        GenerateJob("l", "x", settings, max_tokens=6, top_logprobs=3, ignore_eos=True)
    )
    tokens = [one for delta in answer.deltas for one in delta.logprobs]
    assert len(tokens) == 6
    for one in tokens:
        assert one.token_id == 123
        assert one.logprob < one.top[0].logprob <= 0  # random weights never prefer it
        assert [t.logprob for t in one.top] == sorted((t.logprob for t in one.top), reverse=True)


def test_a_stop_string_has_no_logprobs_as_it_has_no_text(engine):
    job = GenerateJob("w", "x", GREEDY, max_tokens=60, ignore_eos=True, top_logprobs=0)
    (whole,) = engine.run(job)
    rows = [one for delta in whole.deltas for one in delta.logprobs]
    assert b"".join(one.token for one in rows).decode("utf-8", "replace") == whole.content
    for at, length in ((20, 1), (21, 3), (25, 9)):
        stop = whole.content[at : at + length]
        (cut,) = engine.run(replace(job, request_id=f"c{at}", stop=(stop,)))
        kept = [one for delta in cut.deltas for one in delta.logprobs]
        assert kept == rows[: len(kept)]
        text = b"".join(one.token for one in kept).decode("utf-8", "replace")
        assert text.startswith(cut.content)
        assert len(b"".join(one.token for one in kept[:-1])) < len(cut.content.encode())


def test_thinking_budget_closes_the_thoughts(engine):
    open_thinking = Chat(
        (
            Message("user", (TextPart("hi"),)),
            Message("assistant", (TextPart("<think>\n"),)),
        ),
        continue_final_message=True,
    )
    (answer,) = engine.run(
        GenerateJob(
            "t", open_thinking, sampled(9), max_tokens=60, thinking_budget=10, ignore_eos=True
        )
    )
    assert 10 <= answer.finished.usage.reasoning_tokens <= 14
    assert answer.content


def test_an_echoed_prompt_is_scored_as_a_pass_over_all_of_it_would(engine):
    ids = tuple(3 + (i * 7) % 200 for i in range(150))  # more than two pieces
    job = GenerateJob("s", ids, GREEDY, max_tokens=1, top_logprobs=2, echo=True, ignore_eos=True)
    for again in range(2):  # what the first one left behind must not hide logits
        (answer,) = engine.run(replace(job, request_id=f"s{again}"))
        tokens = [one for delta in answer.deltas for one in delta.logprobs]
        assert [one.token_id for one in tokens[:-1]] == list(ids)
        assert math.isnan(tokens[0].logprob)
        assert tokens[0].top == ()
        expected = engine.mlx.call(whole_pass, engine.session, ids).result(60)
        found = [one.logprob for one in tokens[1:-1]]
        assert found == pytest.approx(
            [row[i] for row, i in zip(expected[:-1], ids[1:], strict=True)], abs=2e-3
        )
        for row, one in zip(expected, tokens[1:], strict=True):
            assert one.top[0].logprob == pytest.approx(max(row), abs=2e-3)


def whole_pass(session, ids):
    logits = session.runner._model(mx.array([ids]))[0].astype(mx.float32)
    return (logits - mx.logsumexp(logits, axis=-1, keepdims=True)).tolist()


def test_a_scored_prompt_alone_has_no_new_token(engine):
    for ids in ((5,), (5, 6, 7)):
        job = GenerateJob(f"z{len(ids)}", ids, GREEDY, max_tokens=0, top_logprobs=0, echo=True)
        (answer,) = engine.run(job)
        tokens = [one for delta in answer.deltas for one in delta.logprobs]
        assert [one.token_id for one in tokens] == list(ids)
        assert answer.content == engine.session.preparer.tokenizer.decode(list(ids))
        assert answer.finished.reason is EndReason.LENGTH
        assert answer.finished.usage.completion_tokens == 0


def scores_of(answer):
    return [one for delta in answer.deltas for one in delta.logprobs]


@pytest.mark.parametrize("at_once", [False, True])
def test_choices_over_one_prompt_are_scored_for_the_price_of_one(folder_of_llama, at_once):
    examples = tuple(3 + (i * i * 7) % 200 for i in range(180))
    choices = [(*examples, 20 + i, 30, 40 + i) for i in range(4)]
    ask = GenerateJob("x", (), GREEDY, max_tokens=0, top_logprobs=1, echo=True)
    jobs = [replace(ask, request_id=f"c{i}", prompt=ids) for i, ids in enumerate(choices)]
    with EngineHarness(folder_of_llama, prefix_cache_bytes=1 << 24) as engine:
        if at_once:
            engine.submit(*jobs)
            found = engine.collect(4)
        else:
            found = {(job.request_id, 0): engine.run(job)[0] for job in jobs}
        for job in jobs:
            answer = found[job.request_id, 0]
            alone = engine.run(replace(job, request_id=f"{job.request_id}-alone", no_cache=True))
            [expected] = [scores_of(one) for one in alone]
            scores = scores_of(answer)
            assert [one.token_id for one in scores] == list(job.prompt)
            assert [one.logprob for one in scores[1:]] == pytest.approx(
                [one.logprob for one in expected[1:]], abs=2e-3
            )
            assert [one.top for one in scores[:180]] != [()] * 180
        cached = sorted(answer.finished.usage.cached_tokens for answer in found.values())
        assert cached[0] == 0
        assert all(spared >= 170 for spared in cached[1:]), cached


def test_scores_are_not_shared_where_prefixes_are_not(folder_of_llama):
    ids = tuple(3 + (i * 7) % 200 for i in range(100))
    ask = GenerateJob("a", ids, GREEDY, max_tokens=0, top_logprobs=1, echo=True)
    with EngineHarness(folder_of_llama, prefix_cache_bytes=1 << 24) as engine:
        for changes in ({}, {"cache_salt": "other"}, {"no_cache": True}, {"top_logprobs": 3}):
            name = str(changes)
            [answer] = engine.run(replace(ask, request_id=name, **changes))
            assert answer.finished.usage.cached_tokens == 0, name
            assert [len(one.top) for one in scores_of(answer)][1:] == [
                changes.get("top_logprobs", 1)
            ] * 99
        [again] = engine.run(replace(ask, request_id="again"))
        assert again.finished.usage.cached_tokens >= 98


ENDED_BY_GRAMMAR = {
    "choice": Grammar(GrammarKind.CHOICE, choices=("yes", "no")),
    "schema": Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)),
    "regex": Grammar(GrammarKind.REGEX, r"[0-9]{3}"),
    "lark": Grammar(GrammarKind.LARK, 'start: "a" "b"'),
}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("choice", GREEDY),
        ("choice", sampled(3)),
        ("regex", GREEDY),
        ("lark", GREEDY),
        ("schema", sampled(3)),  # greedy random weights write white space for ever
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "more",
    [{"min_tokens": 60}, {"ignore_eos": True}, {"min_tokens": 60, "ignore_eos": True}],
    ids=str,
)
def test_answer_whose_grammar_is_complete_ends_whatever_else_was_asked(
    engine, kind, settings, more
):
    ask = GenerateJob(
        "r", "x", settings, 100, grammar=ENDED_BY_GRAMMAR[kind], return_token_ids=True
    )
    [usual] = engine.run(ask)
    [answer] = engine.run(replace(ask, **more))
    assert answer.finished.reason is EndReason.STOP
    assert answer.content == usual.content
    ids = [token for delta in answer.deltas for token in delta.token_ids]
    assert len(ids) <= usual.finished.usage.completion_tokens


def test_grammar_goes_on_before_the_min_tokens_as_long_as_it_can(engine):
    digits = Grammar(GrammarKind.REGEX, r"[0-9]{3,}")
    ask = GenerateJob("r", "x", sampled(1), 40, min_tokens=12, grammar=digits)
    [answer] = engine.run(ask)
    assert answer.content.isdigit()
    assert answer.finished.usage.completion_tokens >= 12


def test_counters_count_what_usage_says(folder_of_llama):
    with EngineHarness(folder_of_llama, draft="ngram") as engine:
        loops = "the quick brown fox jumps over the lazy dog " * 2
        jobs = [
            GenerateJob("a", loops, GREEDY, 31, ignore_eos=True),
            GenerateJob("b", loops, GREEDY, 40, stop=("e",), ignore_eos=True),
            GenerateJob("c", loops, GREEDY, 17),
            GenerateJob("d", loops, GREEDY, 0, echo=True),
        ]
        used = [engine.run(job)[0].finished.usage.completion_tokens for job in jobs]
        assert engine.session.engine.counters.completion_tokens == sum(used)
        assert used[-1] == 0
