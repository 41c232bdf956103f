"""How a template is told to think, found by what it reads and what it then draws."""

from __future__ import annotations

import pytest
from text_tokenizers import CHATML, tokenizer

from swiftlm_engine.brain.thoughts import knows_thoughts
from swiftlm_engine.text.chat import Chat, Message, TextPart
from swiftlm_engine.text.events import ContentDelta, ReasoningDelta, TextFinish
from swiftlm_engine.text.model_text import ModelText
from swiftlm_engine.text.output_parser import OutputOptions

HEAD = "{%- for m in messages %}{{- '<u>' + m.content }}{%- endfor %}"
OPEN = HEAD + "{{- '<a><think>' }}"
USER = Message("user", (TextPart("Hi"),))

# The kinds of switches that the families have, under other names than theirs.
SWITCHES = {
    "a bool of any name": (
        HEAD + "{{- '<a>' }}{%- if deep_thinking %}{{- '<think>' }}{%- else %}"
        "{{- '<think></think>' }}{%- endif %}",
        {"deep_thinking": False},
        {"deep_thinking": True},
    ),
    "a mode in words": (
        "{%- if thought_mode is not defined %}{%- set thought_mode = 'on' %}{%- endif %}"
        + HEAD
        + "{%- if think_mode == 'disabled' %}{{- '</think>' }}"
        "{%- elif think_mode == 'enabled' %}{{- '<think>' }}{%- endif %}",
        {"think_mode": "disabled"},
        {"think_mode": "enabled"},
    ),
    "an inverted one": (
        HEAD + "{{- '<think>' }}{%- if skip_reasoning %}{{- '</think>' }}{%- endif %}",
        {"skip_reasoning": True},
        {"skip_reasoning": False},
    ),
    "an effort that is none": (
        "{%- if reasoning_level is not defined %}{%- set reasoning_level = 'no_think' %}"
        "{%- elif reasoning_level not in ['high', 'low', 'no_think'] %}"
        "{{- raise_exception('no such level') }}{%- endif %}"
        + HEAD
        + "{{- '<effort:' + reasoning_level + '><think>' }}",
        {"reasoning_level": "no_think"},
        {"reasoning_level": "high"},
    ),
    "a budget of nothing": (
        "{%- if not thinking_token_budget is defined %}{%- set thinking_token_budget = -1 %}"
        "{%- endif %}" + HEAD + "{{- '<budget:' + (thinking_token_budget | string) + '><think>' }}",
        {"thinking_token_budget": 0},
        {},
    ),
}


def text_of(template: str) -> ModelText:
    return ModelText(tokenizer(template, ("<eos>",), ("<think>", "</think>")))


@pytest.mark.parametrize("kind", SWITCHES)
def test_switches_are_found_by_what_the_template_reads(kind):
    template, off, on = SWITCHES[kind]
    thinking = text_of(template).template.thinking
    assert thinking.variables(False, None, None) == off
    assert thinking.variables(True, None, None) == on
    assert thinking.implied_budget(False, None) is None


def test_the_switch_changes_the_prompt():
    template, _, _ = SWITCHES["a mode in words"]
    text = text_of(template)
    off = text.render(Chat((USER,), enable_thinking=False))
    on = text.render(Chat((USER,), enable_thinking=True))
    assert off.text.endswith("</think>")
    assert on.thinking_preopened
    by_effort = text.render(Chat((USER,), reasoning_effort="none"))
    assert by_effort.text == off.text


def test_what_the_client_names_itself_goes_first():
    template, _, _ = SWITCHES["a mode in words"]
    chat = Chat((USER,), enable_thinking=True, template_kwargs={"think_mode": "disabled"})
    assert text_of(template).render(chat).text.endswith("</think>")


def test_efforts_become_those_that_the_template_takes():
    template, _, _ = SWITCHES["an effort that is none"]
    thinking = text_of(template).template.thinking
    found = {e: thinking.variables(None, e, None)["reasoning_level"] for e in thinking.levels}
    assert found == {
        **{"minimal": "low", "low": "low"},
        **{"medium": "high", "high": "high", "xhigh": "high", "max": "high"},
    }


def test_an_effort_that_is_only_pasted_stays_as_it_is():
    template = HEAD + "{{- 'Effort: ' + (reasoning_effort or 'medium') + '<think>' }}"
    thinking = text_of(template).template.thinking
    assert thinking.variables(None, "xhigh", None) == {"reasoning_effort": "xhigh"}


@pytest.mark.parametrize(
    ("chat", "budget"),
    [
        (Chat((USER,), enable_thinking=False), 0),
        (Chat((USER,), reasoning_effort="none"), 0),
        (Chat((USER,), reasoning_effort="minimal"), 256),
        (Chat((USER,), reasoning_effort="low"), 1024),
        (Chat((USER,), reasoning_effort="high"), None),
        (Chat((USER,)), None),
    ],
)
def test_without_a_switch_thoughts_are_closed_by_a_budget(chat, budget):
    text = text_of(OPEN)
    assert text.thinking_budget(chat) == budget
    assert not text.thinking_warnings(chat)


def test_a_model_without_thoughts_says_so_in_the_answer_and_once_in_the_log(caplog):
    text = text_of(HEAD)
    chat = Chat((USER,), enable_thinking=True)
    assert text.thinking_warnings(chat) == text.thinking_warnings(chat) != ()
    assert len(caplog.records) == 1
    assert text.thinking_budget(Chat((USER,), enable_thinking=False)) is None
    assert not text.thinking_warnings(Chat((USER,), enable_thinking=False))


def said(text: ModelText, answer: str, finish: TextFinish, **options: bool) -> tuple[str, str]:
    prompt = text.render(Chat((USER,)))
    parser = text.output(OutputOptions(**options), prompt)
    ids = text._tokenizer.encode(answer, add_special_tokens=False)
    events = [event for token_id in ids for event in parser.push(token_id)]
    events += [*parser.finish(finish), *parser.unanswered()]
    thoughts = "".join(e.text for e in events if isinstance(e, ReasoningDelta))
    return thoughts, "".join(e.text for e in events if isinstance(e, ContentDelta))


@pytest.mark.parametrize("finish", [TextFinish.STOP, TextFinish.LENGTH])
def test_an_answer_that_never_left_its_thoughts_repeats_them(finish):
    text = text_of(OPEN)
    assert said(text, "it is 4", finish) == ("it is 4", "it is 4")
    assert said(text, "hm</think>it is 4", finish) == ("hm", "it is 4")
    # What a grammar promised is not kept by thoughts.
    assert said(text, "it is 4", finish, is_constrained=True) == ("it is 4", "")


def test_thoughts_are_known_by_their_tags_or_by_their_switch():
    assert knows_thoughts(OPEN)
    assert knows_thoughts(CHATML)
    assert knows_thoughts("{% set t = '<think{}>'.format(x) %}{{ reasoning_effort }}")
    assert not knows_thoughts(HEAD)
