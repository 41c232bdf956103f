"""Walks under the grammar: what it lets a family write is read back as arguments that validate.

A walk draws random tokens among those allowed, and now and then a text that readers might take
for something else. What it wrote goes through the family's own parser, and `jsonschema` judges.
A schema that cannot be held must be refused, never half held.
"""

import json
import random
from enum import StrEnum
from functools import cache
from typing import Annotated, Literal

import jsonschema
import pytest
from grammar_bench import CALLS, Bench, bench_of
from parser_fixtures import Answer, PieceTexts
from pydantic import BaseModel, Field

from swiftlm_engine.grammar.constraint import ForcedCall, GrammarRefused
from swiftlm_engine.text.chat import ToolSpec
from swiftlm_engine.text.detokenizer import special_tokens
from swiftlm_engine.text.events import TextFinish
from swiftlm_engine.text.output_parser import OutputOptions, OutputParser, ToolMode


class Color(StrEnum):
    RED = "red"
    BLUE = "dark blue"


class Point(BaseModel):
    x: int
    y: float | None = None


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: Annotated[float, Field(gt=0, le=10)]


class Box(BaseModel):
    kind: Literal["box"]
    corner: Point
    color: Color | None = None


class Draw(BaseModel):
    shape: Circle | Box = Field(discriminator="kind")
    label: str | None = None
    color: Color
    tags: list[Annotated[str, Field(max_length=8)]] = Field(max_length=3)
    at: tuple[int, int] | None = None
    flags: dict[str, bool] = {}


class Tree(BaseModel):
    value: Annotated[int, Field(ge=0, le=9)]
    children: list["Tree"] = Field(default=[], max_length=2)


STRINGS = {"type": "string"}
ZOD = {  # as zod 4 writes z.object({...})
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "id": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
        "mode": {"default": "fast", "type": "string", "enum": ["fast", "slow"]},
        "note": {"anyOf": [{"type": "string", "minLength": 2, "maxLength": 6}, {"type": "null"}]},
        "on": {"type": "string", "format": "date-time"},
        "pick": {"anyOf": [{"type": "string", "const": "a"}, {"type": "number", "const": 7}]},
        "kv": {"type": "object", "propertyNames": {"type": "string"},
               "additionalProperties": {"type": "number"}},
    },
    "required": ["id", "mode", "note", "pick"],
    "additionalProperties": False,
}  # fmt: skip


def one(schema: object, **more: object) -> dict[str, object]:
    """Arguments with the one required property `a`."""
    return {"type": "object", "properties": {"a": schema}, "required": ["a"],
            "additionalProperties": False, **more}  # fmt: skip


POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"],
         "additionalProperties": False}  # fmt: skip
SCHEMAS: dict[str, dict[str, object]] = {
    "optional enum": one({"anyOf": [{"enum": ["x", "y"], "type": "string"}, {"type": "null"}]}),
    "optional str": one({"anyOf": [{"type": "string"}, {"type": "null"}]}),
    "str or null": one({"type": ["string", "null"], "maxLength": 4}),
    "ref to enum": one({"$ref": "#/$defs/C"}, **{"$defs": {"C": {"enum": ["red", "blue"]}}}),
    "ref and more": one({"$ref": "#/$defs/C", "maxLength": 3},
                        **{"$defs": {"C": {"enum": ["red", "blue"]}}}),
    "const": one({"const": "x"}),
    "string const": one({"type": "string", "const": "x"}),
    "const of two lines": one({"const": "\nx\n"}),
    "integer enum": one({"type": "integer", "enum": [1, 2]}),
    "numbers as strings": one({"enum": ["1", "2", "null", "true"]}),
    "mixed enum": one({"enum": ["1", 2, None, True, "null"]}),
    "null": one({"type": "null"}),
    "ref to object": one({"$ref": "#/$defs/P"}, **{"$defs": {"P": POINT}}),
    "ref elsewhere": {**one({"$ref": "#/properties/b"}),
                      "properties": {"a": {"$ref": "#/properties/b"}, "b": POINT}},
    "optional object": one({"anyOf": [POINT, {"type": "null"}]}),
    "all of": one({"allOf": [{"type": "string"}, {"minLength": 2}, {"maxLength": 3}]}),
    "pattern": one({"type": "string", "pattern": "^[a-c]{2}$"}),
    "pattern inside": one({"type": "string", "pattern": "a/b|^c", "maxLength": 9}),
    "lengths": one({"type": "string", "minLength": 2, "maxLength": 3}),
    "at least": one({"type": "string", "minLength": 9}),
    "long": one({"type": "string", "minLength": 1, "maxLength": 65536}),
    "date": one({"type": "string", "format": "date"}),
    "uuid or null": one({"anyOf": [{"type": "string", "format": "uuid"}, {"type": "null"}]}),
    "unknown format": one({"type": "string", "format": "regex-of-mine", "maxLength": 5}),
    "items": one({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9},
                  "minItems": 2, "maxItems": 3}),
    "tuple": one({"type": "array", "prefixItems": [{"type": "integer"}, {"enum": ["u"]}],
                  "items": False, "minItems": 2}),
    "integer range": one({"type": "integer", "minimum": 1, "maximum": 3}),
    "number range": one({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
    "string or range": one({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 5}]}),
    "string or number": one({"type": ["string", "number"], "minLength": 3}),
    "string or true": one({"anyOf": [{"type": "string", "maxLength": 6}, {"const": True}]}),
    "string or list": one({"anyOf": [{"type": "string"},
                                     {"type": "array", "items": {"type": "integer"}}]}),
    "boolean": one({"type": "boolean"}),
    "anything": one({}),
    "anything short": one({"maxLength": 3}),
    "any object": one({"type": "object"}),
    "map": one({"type": "object", "additionalProperties": {"type": "integer"}}),
    "one of": one({"oneOf": [{"type": "string", "maxLength": 3}, {"type": "integer"}]}),
    "no type": {"properties": {"a": {"enum": ["x"]}}, "required": ["a"]},
    "required alone": {"type": "object", "required": ["a"]},
    "union of objects": {"anyOf": [one({"const": "x"}), {**one({"const": 2})}]},
    "from": {"type": "object", "properties": {"from": {"enum": ["x", "y"]}}, "required": ["from"]},
    "dash": {"type": "object", "properties": {"user-id": {"enum": [1, 2]}},
             "required": ["user-id"]},
    "space": {"type": "object", "properties": {"user id": {"enum": [1]}}, "required": ["user id"]},
    "odd": {"type": "object", "properties": {"größe.$x[]": {"enum": [1]}, "a:b": {"enum": ["q"]}},
            "required": ["größe.$x[]", "a:b"]},
    "pydantic": Draw.model_json_schema(),
    "pydantic tree": Tree.model_json_schema(),
    "zod": ZOD,
}  # fmt: skip
REFUSALS = {
    "not": one({"type": "string", "not": {"const": "x"}}),
    "if": one({"type": "string", "if": {"maxLength": 2}, "then": {"const": "x"}}),
    "overlapping oneOf": one({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}),
    "lookahead": one({"type": "string", "pattern": "^a(?!b)"}),
    "nothing": one({"type": "string", "enum": []}),
    "foreign reference": one({"$ref": "https://example.com/a.json"}),
}
NAMES = ("get-weather", "srv.get", "srv:get", "srv/get", "0get", "x" * 64)
NASTY = (
    "null", "None", "true", " 5", "1e9", "-0", "{}", "[1]", "(1,)", "</parameter>",
    "\n<parameter=a>", "<parameter=a>", '"</parameter></function>', "</param></function>",
    '"</parameter></invoke>', '"</longcat_arg_value></longcat_tool_call>', '"</arg_value>',
    "\n</function>", "</arg_value>", "</tool_call>", "</invoke>", "</param>", "<![CDATA[", "]]>",
    " x ", "\n", '"', "'", "\\", "<escape>", "é€", "😀", ", b=", "**", "ab", "x", "red",
    "2024-01-01",
)  # fmt: skip
ENDS = (
    "</｜GCML｜parameter>\n",  # noqa: RUF001
    "\n</parameter>\n", "</parameter>\n", "</arg_value>", "</longcat_arg_value>", "</param>",
    "<escape>", "</｜DSML｜parameter>\n", "</atem:parameter>\n", "]]></param>",  # noqa: RUF001
    "]<]minimax[>[</a>", "</arg_value:opensource>\n", "<|tool_arg:end|>\n",
    "</steptml:parameter>\n",
)  # fmt: skip
# Versions of families, and families without an example of their own: template and special tokens.
VERSIONS = {
    "deepseek v3": ("function<｜tool▁sep｜> <｜tool▁calls▁begin｜>", ()),  # noqa: RUF001
    "mistral with args": ("[TOOL_CALLS]", ("[TOOL_CALLS]", "[ARGS]")),
    "dsml by token": ("<｜DSML｜tool_calls>", ("｜DSML｜",)),  # noqa: RUF001
    "seed": ("seed:tool_call", ()),
    "tool_calls": ("<tool_calls>", ()),
    "functools": ("functools[", ()),
    "minimax_m3": ("]<]minimax[>[", ()),
    "minimax_m3 by token": ("]<]minimax[>[", ("]<]minimax[>[",)),
    "solar_open": (
        "<|tool_call:begin|>",
        (
            "<|tool_calls|>",
            "<|calls|>",
            "<|tool_call:begin|>",
            "<|tool_call:end|>",
            "<|tool_call:name|>",
            "<|tool_call:args|>",
        ),
    ),
    "solar_open_2": (
        "<|tool_arg:start|>",
        (
            "<|tool_call:start|>",
            "<|tool_call:end|>",
            "<|tool_arg:start|>",
            "<|tool_arg:value|>",
            "<|tool_arg:end|>",
        ),
    ),
    "apertus": ("<|tools_prefix|>", ("<|tools_prefix|>", "<|tools_suffix|>")),
    "gigachat": ("<|function_call|>", ("<|message_sep|>", "<|role_sep|>", "<|function_call|>")),
    "gigachat 3": ("'function call'", ("<|message_sep|>", "<|role_sep|>")),
    "gigachat 3.5": ("｜GCML｜tool_calls", ()),  # noqa: RUF001
    "hunyuan": ("set HYTK = ':opensource'", ()),
    "hunyuan by token": (
        "<tool_calls:x1>",
        (
            "<tool_calls:x1>",
            "</tool_calls:x1>",
            "<tool_call:x1>",
            "</tool_call:x1>",
            "<tool_sep:x1>",
            "<arg_key:x1>",
            "</arg_key:x1>",
            "<arg_value:x1>",
            "</arg_value:x1>",
        ),
    ),
    "plamo": ("<|plamo:begin_tool_requests:plamo|>", ()),
    "internlm": ("<|action_start|>", ("<|action_start|>", "<|plugin|>", "<|action_end|>")),
    "pangu": ("[unused11]", ("[unused11]", "[unused12]")),
    "olmo": ("<function_calls>", ()),
    "command_r": ("Action:\n```json", ()),
    "step3": (
        "<｜tool_calls_begin｜>",  # noqa: RUF001
        (
            "<｜tool_calls_begin｜>",  # noqa: RUF001
            "<｜tool_calls_end｜>",  # noqa: RUF001
            "<｜tool_call_begin｜>",  # noqa: RUF001
            "<｜tool_call_end｜>",  # noqa: RUF001
            "<｜tool_sep｜>",  # noqa: RUF001
        ),
    ),
    "xlam": ("make calls in a single JSON array", ()),
    "granite 20b": ("<function_call>", ()),
}
FAMILIES = (*CALLS, *VERSIONS)


@cache
def bench_for(family: str) -> Bench:
    if family not in VERSIONS:
        return bench_of(family)
    template, special = VERSIONS[family]
    return Bench(template, (*special, "</s>"), ())


def walk(bench: Bench, tools: tuple[ToolSpec, ...], seed: int) -> list[int] | None:
    """Tokens that the grammar allows, up to an end it allows; None when the walk got too long."""
    dice, ids = random.Random(seed), []
    constraint = bench.compiler.start(ForcedCall(tools, parallel=False), thinks=False)
    weights = _weights(bench)
    ends = [bench.ids(end) for end in ENDS if end in _example(bench)] or [bench.ids('"')]
    while not constraint.is_done:
        allowed = bench.allowed(constraint)
        assert allowed, "nothing may follow"
        if bench.end in allowed and (len(allowed) < 60 or len(ids) > 60):
            break
        if len(ids) > 700:
            return None
        pushed = bench.ids(dice.choice(NASTY)) if dice.random() < 0.25 and len(ids) < 120 else []
        if dice.random() < 0.15:
            pushed = dice.choice(ends)
        if not pushed or pushed[0] not in allowed:
            choices = sorted(allowed - {bench.end})
            pushed = dice.choices(choices, [weights.get(i, 1) for i in choices])[:1]
        for token_id in pushed:
            if token_id not in (bench.allowed(constraint) or ()):
                break
            constraint.advance(token_id)
            ids.append(token_id)
            assert constraint.error == ""
            if constraint.is_done:
                break
    return ids


VALUE_ENDS = {
    "minimax_m3": "]<]minimax[>[</a>",
    "hunyuan": "</arg_value:opensource>\n",
    "solar_open_2": "<|tool_arg:end|>\n",
    "step3": "</steptml:parameter>\n",
    "gigachat35": "</｜GCML｜parameter>\n",  # noqa: RUF001
}


def _example(bench: Bench) -> str:
    if bench.format.name in VALUE_ENDS:
        return VALUE_ENDS[bench.format.name]
    return CALLS.get(bench.format.name, ("\n</parameter>\n</atem:parameter>\n",))[0]


def _weights(bench: Bench) -> dict[int, float]:
    """What ends a value is likely, so that walks are short; what nobody can read is not."""
    weights: dict[int, float] = dict.fromkeys(special_tokens(bench.tokenizer), 400)
    for token_id in range(len(bench.tokenizer)):
        text = bench.tokenizer.decode([token_id])
        if text in ('"', "}", "]", ")", "\n", "<"):
            weights[token_id] = 60
        elif not (text.isascii() and text.isprintable()):
            weights.setdefault(token_id, 0.01)
    return weights


def read_back(bench: Bench, ids: list[int], tools: tuple[ToolSpec, ...]) -> Answer:
    detokenizer = bench.texts.start()
    pieces = [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]
    streamed, whole = _read(bench, pieces, tools), _read(bench, ["".join(pieces)], tools)
    assert [call[1:] for call in streamed.calls] == [call[1:] for call in whole.calls]
    assert streamed.content == whole.content
    return streamed


def _read(bench: Bench, pieces: list[str], tools: tuple[ToolSpec, ...]) -> Answer:
    options = OutputOptions(tools=tools, tool_mode=ToolMode.FORCED, parallel_tool_calls=False)
    parser = OutputParser(PieceTexts(pieces), options, bench.format)
    answer = Answer()
    for at in range(len(pieces)):
        answer.add(parser.push(at))
    answer.add(parser.finish(TextFinish.STOP))
    return answer


def check(family: str, name: str, schema: dict[str, object], seeds: range) -> None:
    bench, tools = bench_for(family), (ToolSpec(name, "", schema),)
    finished = 0
    for seed in seeds:
        ids = walk(bench, tools, seed)
        if ids is None:
            continue
        finished += 1
        answer = read_back(bench, ids, tools)
        written = bench.tokenizer.decode(ids)
        assert [call[1] for call in answer.calls] == [name], written
        assert answer.content.strip() == "", written
        try:
            jsonschema.validate(json.loads(answer.calls[0][2]), schema)
        except (ValueError, jsonschema.ValidationError) as error:
            pytest.fail(f"{written!r} was read as {answer.calls[0][2]}: {str(error)[:200]}")
    assert finished, "no walk came to an end"


def some(cases: list[tuple[str, str]], share: int) -> list[tuple[str, str]]:
    """Every family and every schema, though not each with each."""
    return random.Random(7).sample(cases, len(cases) // share)


EVERY = [(family, label) for family in FAMILIES for label in SCHEMAS]


@pytest.mark.parametrize(("family", "label"), some(EVERY, 9))
def test_what_a_grammar_lets_through_is_read_back_and_valid(family: str, label: str) -> None:
    check(family, "look", SCHEMAS[label], range(1))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "label"), EVERY)
def test_what_every_grammar_lets_through_is_read_back_and_valid(family: str, label: str) -> None:
    check(family, "look", SCHEMAS[label], range(12))


def test_a_text_of_thousands_of_characters_is_held_with_its_exceptions() -> None:
    far = one({"type": "string", "minLength": 2000, "maxLength": 70000})
    for family in ("qwen", "minimax", "minicpm", "dsml", "function_gemma"):
        bench_for(family).compiler.start(ForcedCall((ToolSpec("look", "", far),)), thinks=False)


@pytest.mark.parametrize("family", ["qwen", "minimax", "minicpm"])
def test_a_listed_text_with_a_tag_of_the_family_is_refused(family: str) -> None:
    text = {"qwen": "a\n</function>", "minimax": "</parameter>", "minicpm": "</param>"}[family]
    tools = (ToolSpec("look", "", one({"enum": ["x", text]})),)
    with pytest.raises(GrammarRefused, match=r"property 'a': a listed value holds '</"):
        bench_for(family).compiler.start(ForcedCall(tools), thinks=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_name_that_http_takes_survives(family: str) -> None:
    for name in NAMES:
        check(family, name, SCHEMAS["integer enum"], range(1))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("label", REFUSALS)
def test_a_schema_that_cannot_be_held_is_refused(family: str, label: str) -> None:
    tools = (ToolSpec("look", "", REFUSALS[label]),)
    with pytest.raises(GrammarRefused):
        bench_for(family).compiler.start(ForcedCall(tools), thinks=False)


def test_a_refusal_names_the_tool_the_property_and_the_keyword() -> None:
    tools = (ToolSpec("look", "", REFUSALS["not"]),)
    with pytest.raises(GrammarRefused, match="tool 'look': property 'a': 'not'"):
        bench_for("qwen").compiler.start(ForcedCall(tools), thinks=False)
