"""Promises for calls that a model breaks: no family ever gives a client broken JSON.

What is out already is completed, what is not is shown as text, and pieces change nothing.
"""

import json
import random
import re
from collections.abc import Iterator

import pytest
from grammar_bench import CALLS, SIGNS
from parser_fixtures import Answer, PieceTexts

from swiftlm_engine.text.answer_format import AnswerFormat
from swiftlm_engine.text.chat import ToolSpec
from swiftlm_engine.text.events import TextFinish
from swiftlm_engine.text.markers import MARK
from swiftlm_engine.text.output_parser import OutputOptions, OutputParser
from swiftlm_engine.text.tools.json_stream import JsonStream, completion

# ruff: noqa: RUF001 - the tokens of Step3 are spelled with wide bars

TOOL = ToolSpec(
    "get_weather",
    "",
    {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
)
TAG = "]<]minimax[>["
HY = ":opensource"
ARGUMENTS = '{"city": "Rome", "days": 3}'
NEW = {
    "minimax_m3": (
        f'{TAG}<tool_call>\n{TAG}<invoke name="get_weather">{TAG}<city>Rome{TAG}</city>'
        f"{TAG}<days>3{TAG}</days>{TAG}</invoke>\n{TAG}</tool_call>", TAG, (TAG,),
    ),
    "solar_open": (
        "<|tool_calls|><|tool_call:begin|>abc123<|tool_call:name|>get_weather<|tool_call:args|>"
        f"{ARGUMENTS}<|tool_call:end|><|calls|>", "<|tool_call:begin|>",
        ("<|tool_calls|>", "<|calls|>", "<|tool_call:begin|>", "<|tool_call:end|>",
         "<|tool_call:name|>", "<|tool_call:args|>"),
    ),
    "solar_open_2": (
        "<|tool_call:start|>get_weather\n<|tool_arg:start|>city<|tool_arg:value|>Rome"
        "<|tool_arg:end|>\n<|tool_arg:start|>days<|tool_arg:value|>3<|tool_arg:end|>\n"
        "<|tool_call:end|>", "<|tool_arg:start|>", (),
    ),
    "apertus": (f'<|tools_prefix|>[{{"get_weather": {ARGUMENTS}}}]<|tools_suffix|>',
                "<|tools_prefix|>", ("<|tools_prefix|>", "<|tools_suffix|>")),
    "gigachat 3.1": (f'<|function_call|>{{"name": "get_weather", "arguments": {ARGUMENTS}}}',
                     "<|function_call|>", ("<|function_call|>",)),
    "gigachat 3": (
        "<|message_sep|>\n\nfunction call<|role_sep|>\n"
        f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}', "'function call'",
        ("<|message_sep|>", "<|role_sep|>"),
    ),
    "hunyuan": (
        f"<tool_calls{HY}>\n<tool_call{HY}>get_weather<tool_sep{HY}>\n<arg_key{HY}>city"
        f"</arg_key{HY}>\n<arg_value{HY}>Rome</arg_value{HY}>\n<arg_key{HY}>days</arg_key{HY}>\n"
        f"<arg_value{HY}>3</arg_value{HY}>\n</tool_call{HY}>\n</tool_calls{HY}>",
        "set HYTK = ':opensource'", (),
    ),
    "internlm": (
        f'<|action_start|><|plugin|>\n{{"name": "get_weather", "parameters": {ARGUMENTS}}}'
        "<|action_end|>", "<|action_start|>", (),
    ),
    "pangu": (f'[unused11][{{"name": "get_weather", "arguments": {ARGUMENTS}}}][unused12]',
              "[unused11]", ()),
    "step3": (
        "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
        '<steptml:invoke name="get_weather">\n<steptml:parameter name="city">Rome'
        '</steptml:parameter>\n<steptml:parameter name="days">3</steptml:parameter>\n'
        "</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>", "<｜tool_calls_begin｜>",
        ("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", "<｜tool_call_begin｜>",
         "<｜tool_call_end｜>", "<｜tool_sep｜>"),
    ),
    "xlam": (f'[{{"name": "get_weather", "arguments": {ARGUMENTS}}}]',
             "make calls in a single JSON array", ()),
    "granite 20b": (f'<function_call> {{"name": "get_weather", "arguments": {ARGUMENTS}}}',
                    "<function_call>", ()),
    "olmo": ('<function_calls>get_weather(city="Rome", days=3)</function_calls>',
             "<function_calls>", ()),
    "command_r": (
        'Action: ```json\n[\n    {\n        "tool_name": "get_weather",\n        "parameters": '
        f"{ARGUMENTS}\n    }}\n]\n```", "Action:\n```json", (),
    ),
}  # fmt: skip
FAMILIES = {name: (text, SIGNS.get(name, text), special) for name, (text, special) in CALLS.items()}
FAMILIES |= NEW
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|end|>")
FAMILIES["harmony"] = (
    f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{ARGUMENTS}",
    "<|channel|>analysis", HARMONY,
)  # fmt: skip


def read(family: str, text: str, pieces: int, reason: TextFinish) -> tuple[Answer, OutputParser]:
    _, sign, special = FAMILIES[family]
    answer_format = AnswerFormat(sign, special, (*special, "<tool_call>", "</tool_call>"))
    cut = [answer_format.mark(text)]
    if pieces == 1:  # but a control token is one piece
        controls = "|".join(re.escape(MARK + token) for token in answer_format.controls)
        cut = re.findall(f"{controls}|." if controls else ".", cut[0], re.DOTALL)
    parser = OutputParser(PieceTexts(cut), OutputOptions(tools=(TOOL,)), answer_format)
    answer = Answer()
    for at in range(len(cut)):
        answer.add(parser.push(at))
    answer.add(parser.finish(reason))
    return answer, parser


def check(family: str, text: str, reason: TextFinish = TextFinish.STOP) -> Answer:
    whole, one = read(family, text, len(text) + 99, reason)
    streamed, other = read(family, text, 1, reason)
    assert [c[1:] for c in streamed.calls] == [c[1:] for c in whole.calls], text
    assert (streamed.content, one.finish_reason) == (whole.content, other.finish_reason), text
    for call in streamed.calls:
        assert isinstance(json.loads(call[2]), dict), text
    return streamed


@pytest.mark.parametrize("family", FAMILIES)
def test_the_call_itself_is_read(family: str) -> None:
    answer = check(family, FAMILIES[family][0])
    assert [call[1] for call in answer.calls] == ["get_weather"]
    assert json.loads(answer.calls[0][2]) == {"city": "Rome", "days": 3}
    assert answer.content.strip() == ""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_ends_anywhere_is_no_broken_json(family: str) -> None:
    text = FAMILIES[family][0]
    for end in range(1, len(text), max(1, len(text) // 24)):
        check(family, text[:end], TextFinish.LENGTH)
        answer = check(family, text[:end])
        assert answer.calls or answer.content.strip(), "nothing is lost without a word"


def broken(text: str) -> Iterator[str]:
    yield text.replace('"', "'")
    yield text.replace('"Rome"', "\u201cRome\u201d")
    yield text.replace('"Rome"', "2024-01-01").replace("Rome", "2024-01-01")
    yield text.replace('"Rome"', "2024-01-01T10:00:00Z")
    yield text.replace('"city"', "city")
    yield text.replace("3}", "3")
    yield text.replace("3}}", "3")
    yield text.replace("3}", "3}}}")
    yield text.replace('Rome"', "Rome")
    yield text.replace('"Rome"', 'a "quoted" word')
    yield text.replace(", ", " ").replace("</arg_value>", "")
    dice = random.Random(5)
    for _ in range(12):
        at = dice.randrange(len(text))
        yield text[:at] + dice.choice(("", '"', "}", "{", "<", "\n", "]", ",")) + text[at + 1 :]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_is_written_wrong_is_no_broken_json(family: str) -> None:
    for text in broken(FAMILIES[family][0]):
        answer = check(family, text + "\nDone.")
        if family != "harmony":  # a message to another recipient is not shown
            assert answer.calls or answer.content.strip(), text


@pytest.mark.parametrize(
    "family", ["hermes", "mistral", "kimi_k2", "deepseek", "nemotron", "cohere"]
)
@pytest.mark.parametrize(
    ("wrong", "city"),
    [
        ("'Rome'", "Rome"),
        ("\u201cRome\u201d", "Rome"),
        ("2024-01-01", "2024-01-01"),
        ("2024-01-01T10:00:00Z", "2024-01-01T10:00:00Z"),
        ("New York", "New York"),
    ],
)
def test_what_can_be_mended_is_mended(family: str, wrong: str, city: str) -> None:
    answer = check(family, FAMILIES[family][0].replace('"Rome"', wrong))
    assert json.loads(answer.calls[0][2]) == {"city": city, "days": 3}
    answer = check(family, FAMILIES[family][0].replace('"city"', "city").replace('"days"', "days"))
    assert json.loads(answer.calls[0][2]) == {"city": "Rome", "days": 3}


@pytest.mark.parametrize("family", ["hermes", "kimi_k2", "nemotron", "cohere", "harmony"])
def test_a_forgotten_brace_is_made_up_for(family: str) -> None:
    answer = check(family, FAMILIES[family][0].replace("3}", "3", 1))
    assert json.loads(answer.calls[0][2]) == {"city": "Rome", "days": 3}


def test_every_beginning_of_an_object_can_be_completed() -> None:
    text = '{"a\\u00e9\\\\": [1, {"b": "x\\"y"}, null], "c": {"d": true, "e": -1.5}}'
    for end in range(len(text)):
        stream = JsonStream()
        shown = "".join(segment.text for segment in stream.feed(text[:end]))
        rest = completion(shown)
        assert rest is not None, shown
        assert isinstance(json.loads(shown + rest), dict)
