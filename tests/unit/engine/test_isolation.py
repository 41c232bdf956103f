"""Promise of isolation: foreign code that hangs, crashes or grows costs one request, in bounded
time, and what is rendered and tokenised in a process is what transformers makes."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest
from text_tokenizers import CHATML, STRICT, tokenizer

from swiftlm_engine.isolation import children as children_module
from swiftlm_engine.isolation.children import Children
from swiftlm_engine.isolation.work import Cancelled, Work, current, doing
from swiftlm_engine.text import encoder as encoder_module
from swiftlm_engine.text import isolated_template, tokenizer_process
from swiftlm_engine.text.chat import Chat, Message, TextPart
from swiftlm_engine.text.encoder import Encoder, TokenizerBroken, TooManyTokens
from swiftlm_engine.text.isolated_template import IsolatedTemplates, TemplateBroken
from swiftlm_engine.text.jinja import Renderer, template_sources
from swiftlm_engine.text.template import ChatTemplate, TemplateRefused
from swiftlm_engine.text.template_environment import render

HELLO = [{"role": "user", "content": "hello"}]
NO = {"add_generation_prompt": True, "tools": None}
DOUBLED = (
    "{% set ns = namespace(a='x' * 1000) %}{% for i in range(40) %}{% set ns.a = ns.a ~ ns.a %}"
    "{% endfor %}{{ ns.a }}"
)
LISTS = (
    "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}"
    "{% endfor %}{{ ns.a }}"
)
HARMFUL = {
    "doubles a text": DOUBLED,
    "loops": "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "lists of lists": LISTS,
    "compares lists": LISTS.replace("{{ ns.a }}", "{% set b = ns.a == ns.a %}{{ ns.a | tojson }}"),
    "wide": "{{ 'a' | center(10 ** 11) }}",
    "replaces": "{% set a = 'a' * 10**6 %}{{ a.replace('a', a) }}",
    "digits": "{{ '%999999999999d' % 1 }}",
    "lorem": "{{ lipsum(n=10**9) }}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated_template, "DEADLINE_S", 0.4)
    monkeypatch.setattr(isolated_template, "_LIMIT_BYTES", 200 << 20)


@pytest.mark.parametrize("name", HARMFUL)
def test_a_harmful_template_costs_one_request(name: str, short: None) -> None:
    templates = IsolatedTemplates([HARMFUL[name], CHATML])
    began = time.monotonic()
    with pytest.raises((TemplateBroken, ValueError)):
        templates.render(HARMFUL[name], HELLO, NO)
    assert time.monotonic() - began < 5
    assert "hello" in templates.render(CHATML, HELLO, NO)


def test_a_template_that_is_slow_at_every_step_is_bounded_as_a_whole(
    short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swiftlm_engine.isolation.work.ALLOWED_S", 1.0)
    slow = (
        "{% for i in range(90000) %}{% for j in range(20) %}{% endfor %}{% endfor %}"
        "{{ messages[0].content }}"
    )
    made = tokenizer(slow)
    template = ChatTemplate(made, templates=IsolatedTemplates(template_sources(made)))
    turns = tuple(Message("user", (TextPart(f"t{i}"),)) for i in range(40))
    began = time.monotonic()
    with doing(Work(), threading.Lock()), pytest.raises(TemplateBroken):
        _ = [template.render(Chat(turns)) for _ in range(100)]
    assert time.monotonic() - began < 4


def test_what_a_template_raises_is_a_refusal_of_the_conversation() -> None:
    made = tokenizer("{{ raise_exception('only \\x1b[31m tools') }}")
    template = ChatTemplate(made, templates=IsolatedTemplates(template_sources(made)))
    with pytest.raises(TemplateRefused, match="only"):
        template.render(Chat((Message("user", (TextPart("a"),)),)))


MESSAGES = [
    {"role": "system", "content": "be brief \U0001f600 \ud800"},
    {"role": "user", "content": "hello", "name": None},
    {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": None},
    {"role": "user", "content": "again"},
]
SOURCES = {
    "chatml": CHATML,
    "strict": STRICT,
    "names": "{% for m in messages %}{{ m.keys() | list }}{{ m.thinking }}{% endfor %}",
    "tools": "{{ tools | tojson(indent=2) }}{% generation %}{{ bos_token }}{% endgeneration %}",
    "loop controls": "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}"
    "{{ m.content }}{% endfor %}{{ add_generation_prompt }}{{ documents is none }}",
    "namespace": "{% set ns = namespace(n=dict(a=1)) %}{{ ns.n.a }}",
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_process_renders_what_transformers_renders(name: str) -> None:
    made = tokenizer(SOURCES[name])
    messages = MESSAGES[1:] if name == "strict" else MESSAGES
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": "é"}}}]
    theirs = made.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, tokenize=False
    )
    renderer = Renderer(made, None, IsolatedTemplates(template_sources(made)))
    assert renderer._apply(messages, tools, True, {}) == theirs
    assert Renderer(made)._apply(messages, tools, True, {}) == theirs


def test_a_namespace_holds_no_name_of_pythons_own() -> None:
    for source in ("{% set ns = namespace(__class__=1) %}", "{{ dict.__class__ }}{{ 1/0 }}"):
        with pytest.raises(Exception, match=r"underscore|zero"):
            render(source, HELLO, NO)


@pytest.fixture(scope="module")
def hung() -> Children:
    """Its processes answer until they are stopped."""
    source = tokenizer().backend_tokenizer.to_str().encode()
    return Children(tokenizer_process.__name__, lambda: source)


def asked(children: Children, deadline_s: float = 20.0) -> bytes:
    return children.ask(tokenizer_process.HEAD.pack(False, 10**6) + b"hello", deadline_s, 2 << 30)


def stop_idle(children: Children) -> int:
    _, child = children._idle[-1]
    os.kill(child.process.pid, signal.SIGSTOP)
    return child.process.pid


def test_one_that_is_cancelled_ends_its_process_at_once(hung: Children) -> None:
    asked(hung)
    pid, work = stop_idle(hung), Work()
    threading.Timer(0.1, work.cancel).start()
    began = time.monotonic()
    with doing(work, threading.Lock()), pytest.raises(Cancelled):
        asked(hung)
    assert time.monotonic() - began < 10  # of the 20 s that the question may take
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert hung._num_busy == 0
    assert asked(hung)


def test_one_that_hangs_holds_up_nobody_else(hung: Children) -> None:
    asked(hung)
    stop_idle(hung)
    turn, work = threading.Lock(), Work()
    hanging = Work(turn)

    def hang() -> None:
        with doing(hanging, turn), pytest.raises(Cancelled):
            asked(hung)

    thread = threading.Thread(target=hang)
    thread.start()
    while not hung._num_busy:
        time.sleep(0.001)
    with doing(work, turn):  # the turn is free
        assert asked(hung)
    hanging.cancel()
    thread.join(15)
    assert not thread.is_alive()
    assert not turn.locked()


def test_a_crowd_that_is_answered_one_by_one_starts_no_second_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[object] = []

    class Quick:
        alive = True

        def __init__(self, *_: object) -> None:
            made.append(self)

        def ask(self, *_: object) -> bytes:
            time.sleep(0.04)
            return b"answer"

    monkeypatch.setattr(children_module, "Child", Quick)
    monkeypatch.setattr(children_module, "PATIENCE_S", 1.0)
    children = Children("none", lambda: b"")
    with ThreadPoolExecutor(40) as crowd:  # of whom the last waits for 1.6 s
        answers = list(crowd.map(lambda _: children.ask(b"", 20.0, 1 << 30), range(40)))
    assert answers == [b"answer"] * 40
    assert len(made) == 1
    children._idle.clear()


def test_who_is_cancelled_before_his_turn_does_nothing() -> None:
    work = Work()
    work.cancel()
    with pytest.raises(Cancelled), doing(work, threading.Lock()):
        pytest.fail("it had its turn")
    current().check()


@pytest.fixture
def all_long(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(encoder_module, "LONG_TEXT", 4)
    return encoder_module


@pytest.mark.parametrize("special", [True, False])
def test_a_long_text_is_tokenised_as_a_short_one(all_long: ModuleType, special: bool) -> None:
    made = tokenizer()
    text = "the capital <|im_start|> of é \U0001f600 France\n" * 3
    encoder = Encoder(made, 1000)
    assert encoder.ids(text, special) == made.encode(text, add_special_tokens=special)
    here, apart = Encoder(made).with_ends(text), encoder.with_ends(text)
    assert apart.token_ids == here.token_ids
    assert list(apart.ends) == list(here.ends)
    assert encoder._children is not None
    assert encoder._children._idle == []


def test_a_text_with_too_many_tokens_is_counted_only(
    all_long: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_long, "MAX_TOKENS", 20)
    text = "France " * 50
    with pytest.raises(TooManyTokens) as refused:
        Encoder(tokenizer(), 10).ids(text)
    assert refused.value.count == len(tokenizer().encode(text))


def test_bytes_that_no_tokenizer_makes_fit_are_not_tokenised() -> None:
    encoder = Encoder(tokenizer(), 100)
    assert encoder.max_bytes is not None
    encoder.check_size(encoder.max_bytes)
    with pytest.raises(TooManyTokens):
        encoder.check_size(encoder.max_bytes + 1)
    longest = max(tokenizer().get_vocab(), key=len)
    assert len(longest) * 100 <= encoder.max_bytes  # a prompt that fits is never refused by size


def test_a_tokenizer_that_crashes_is_named(all_long: ModuleType) -> None:
    encoder = Encoder(tokenizer(), 1000)
    assert encoder._children is not None
    encoder._children._first = lambda: tokenizer().backend_tokenizer.to_str().encode()
    encoder._children._module = "swiftlm_engine.text.no_such_module"
    with pytest.raises((TokenizerBroken, OSError)):
        encoder.ids("a long text")


def test_native_code_that_hangs_in_this_process_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder(tokenizer(), 1000)
    monkeypatch.setattr(encoder_module, "_DEADLINE_S", 0.01)
    with encoder._natively():
        time.sleep(0.02)
        assert "longer than" in encoder.stuck()
    assert encoder.stuck() == ""
    monkeypatch.setattr(encoder_module, "_DEADLINE_S", 99)
    monkeypatch.setattr(encoder_module, "_SLOW_S", 0.0)
    monkeypatch.setattr(encoder_module, "_GROWTH_BYTES", 20 << 20)
    with encoder._natively():
        assert encoder.stuck() == ""
        held = b"x" * (60 << 20)
        assert "memory" in encoder.stuck()
        del held
