"""The engine never dies from a request: random requests, many at once, each ends exactly once."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from engine_harness import EngineHarness
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import make_model

from swiftlm_engine.messages import (
    EndReason,
    EngineFault,
    GenerateJob,
    Grammar,
    GrammarKind,
    Infill,
    ToolChoice,
)
from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.text.chat import Chat, ImagePart, Message, TextPart, ToolCall, ToolSpec

NUM_BATCHES = 210
BATCH = 10  # requests of one example: 2,100 in all for each model

texts = st.text(max_size=40)
numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 2), st.sampled_from([0.0, 1.0])
)
sampling = st.builds(
    SamplingSettings,
    temperature=numbers,
    top_p=st.one_of(numbers, st.floats(0, 1)),
    top_k=st.integers(0, 1000),
    min_p=st.one_of(numbers, st.floats(0, 1)),
    xtc_probability=st.floats(0, 1),
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.3]),
    repetition_context=st.integers(1, 40),
    presence_penalty=st.floats(-3, 3),
    frequency_penalty=st.floats(-3, 3),
    logit_bias=st.lists(st.tuples(st.integers(-5, 500), st.floats(-200, 200)), max_size=3).map(
        tuple
    ),
    seed=st.one_of(st.none(), st.integers(0, 2**64 - 1)),
)
sane_sampling = st.builds(
    SamplingSettings,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_p=st.sampled_from([0.5, 1.0]),
    top_k=st.sampled_from([0, 1, 50]),
    seed=st.integers(0, 99),
)
parts = st.one_of(
    st.builds(TextPart, texts), st.builds(ImagePart, st.binary(max_size=4), st.just("image/png"))
)
calls = st.builds(ToolCall, texts, texts, st.one_of(texts, st.just('{"a": 1}')))
messages = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "system", "developer", "tool", "odd"]),
    parts=st.lists(st.one_of(st.builds(TextPart, texts), parts), max_size=2).map(tuple),
    reasoning=st.one_of(st.none(), texts),
    tool_calls=st.lists(calls, max_size=1).map(tuple),
    tool_call_id=st.one_of(st.none(), texts),
)
schemas = st.sampled_from(
    [None, {}, {"type": "object"}, {"type": "odd"}, {"$ref": "#/nowhere"}, {"enum": [1, "x"]}]
)
tools = st.builds(
    ToolSpec, st.sampled_from(["f", "g", "spaced name"]), texts, schemas, st.booleans()
)
chats = st.builds(
    Chat,
    messages=st.lists(messages, max_size=4).map(tuple),
    tools=st.lists(tools, max_size=2).map(tuple),
    enable_thinking=st.one_of(st.none(), st.booleans()),
    continue_final_message=st.booleans(),
)
prompts = st.one_of(
    chats,
    texts,
    st.lists(st.integers(-2, 500), max_size=30).map(tuple),
    st.builds(Infill, texts, texts),
    st.just("word " * 400),
)
grammars = st.sampled_from(
    [
        None,
        None,
        Grammar(GrammarKind.JSON_OBJECT),
        Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}'),
        Grammar(GrammarKind.JSON_SCHEMA, "{"),
        Grammar(GrammarKind.REGEX, "[a-z]+"),
        Grammar(GrammarKind.REGEX, "("),
        Grammar(GrammarKind.LARK, "start: /x/"),
        Grammar(GrammarKind.CHOICE, choices=("a", "b")),
    ]
)


@st.composite
def jobs(draw):
    return GenerateJob(
        request_id="",
        prompt=draw(prompts),
        sampling=draw(st.one_of(sane_sampling, sampling)),
        max_tokens=draw(st.one_of(st.integers(0, 6), st.just(3))),
        min_tokens=draw(st.integers(0, 3)),
        stop=draw(st.lists(st.text(min_size=1, max_size=3), max_size=2).map(tuple)),
        stop_token_ids=draw(st.lists(st.integers(0, 500), max_size=2).map(tuple)),
        n=draw(st.sampled_from([1, 1, 1, 2, 0, 99])),
        top_logprobs=draw(st.sampled_from([None, None, 0, 5, 20])),
        ignore_eos=draw(st.booleans()),
        deadline_s=draw(st.sampled_from([None, None, 0.01])),
        raw_text=draw(st.booleans()),
        echo=draw(st.booleans()),
        grammar=draw(grammars),
        thinking_budget=draw(st.sampled_from([None, 0, 2])),
        no_cache=draw(st.booleans()),
        tool_choice=draw(st.sampled_from(list(ToolChoice))),
        tool_name=draw(st.sampled_from(["f", "missing"])),
    )


@pytest.fixture(
    scope="module", params=["llama", pytest.param("qwen3_next", marks=pytest.mark.slow)]
)
def engine(request, tmp_path_factory):
    folder = make_model(request.param, tmp_path_factory.mktemp(request.param))
    with EngineHarness(folder, prefix_cache_bytes=2 << 20, max_queue=1000) as harness:
        yield harness


@settings(
    max_examples=NUM_BATCHES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
@given(st.lists(jobs(), min_size=BATCH, max_size=BATCH), st.integers(0, 2**32))
def test_every_request_ends_once_whatever_it_asks(engine, batch, dice):
    chance = random.Random(dice)
    expected = {}
    for i, job in enumerate(batch):
        named = _named(job, f"r{i}")
        try:
            engine.submit(named)
        except EngineFault:  # refused with a reason; anything else would be a bug
            continue
        expected |= {(named.request_id, index): None for index in range(named.n)}
        if chance.random() < 0.2:
            engine.abort(named.request_id)
    answers = engine.collect(len(expected), timeout_s=60)
    assert answers.keys() == expected.keys()
    for answer in answers.values():
        assert answer.num_finished == 1
        if answer.finished.reason is EndReason.ERROR:
            assert answer.finished.fault.kind.value in ("deadline", "busy")
    assert engine.session.runner.num_open == 0
    assert not engine.session.engine.choices


def _named(job: GenerateJob, name: str) -> GenerateJob:
    return replace(job, request_id=name)
