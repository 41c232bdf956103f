"""Promises of the families: each is recognised, and none reads less than mlx-lm's own parser."""

import importlib
import json
import pkgutil
import re
import sys
from types import ModuleType

import mlx_lm.tool_parsers
import pytest
from parser_fixtures import Answer, PieceTexts

from swiftlm_engine.text.answer_format import AnswerFormat
from swiftlm_engine.text.chat import ToolSpec, tool_dicts
from swiftlm_engine.text.events import TextFinish
from swiftlm_engine.text.output_parser import OutputOptions, OutputParser
from swiftlm_engine.text.tools import gemma_calls
from swiftlm_engine.text.tools.families import MLX_LM_NAMES
from swiftlm_engine.text.tools.json_stream import mend_object
from swiftlm_engine.text.tools.values import Properties, json_literal, json_value

TOOLS = (
    ToolSpec(
        "get_weather",
        "",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
        },
    ),
    ToolSpec("get_time", "", {"type": "object", "properties": {}}),
)
ARGUMENTS = {"city": "Paris, <b>", "days": 3, "tags": ["a", "b"]}
# What a model of each of mlx-lm's families writes for that call.
WRITTEN = {
    "function_gemma": "<start_function_call>"
    "call:get_weather{city:<escape>Paris, <b><escape>,days:3}<end_function_call>",
    "gemma4": '<|tool_call>call:get_weather{city:<|"|>Paris, <b><|"|>,days:3,'
    'tags:[<|"|>a<|"|>,<|"|>b<|"|>]}<tool_call|>',
    "glm47": "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris, <b></arg_value>"
    "<arg_key>days</arg_key><arg_value>3</arg_value>"
    '<arg_key>tags</arg_key><arg_value>["a", "b"]</arg_value></tool_call>',
    "json_tools": '<tool_call>\n{"name": "get_weather", "arguments": '
    f"{json.dumps(ARGUMENTS)}}}\n</tool_call>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    f"<|tool_call_argument_begin|>{json.dumps(ARGUMENTS)}<|tool_call_end|>"
    "<|tool_calls_section_end|>",
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
    '<|open|>argument key="city" type="string"<|sep|>Paris, <b><|close|>argument<|sep|>'
    '<|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|>'
    '<|open|>argument key="tags" type="array"<|sep|>["a", "b"]<|close|>argument<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|>",
    "longcat": "<longcat_tool_call>get_weather\n<longcat_arg_key>city</longcat_arg_key>\n"
    "<longcat_arg_value>Paris, <b></longcat_arg_value>\n"
    "<longcat_arg_key>days</longcat_arg_key>\n<longcat_arg_value>3</longcat_arg_value>\n"
    "<longcat_arg_key>tags</longcat_arg_key>\n"
    '<longcat_arg_value>["a", "b"]</longcat_arg_value>\n</longcat_tool_call>',
    "minicpm5": '<function name="get_weather"><param name="city"><![CDATA[Paris, <b>]]></param>'
    '<param name="days">3</param><param name="tags">["a", "b"]</param></function>',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="get_weather">\n'
    '<parameter name="city">Paris, <b></parameter>\n<parameter name="days">3</parameter>\n'
    '<parameter name="tags">["a", "b"]</parameter>\n</invoke>\n</minimax:tool_call>',
    "mistral": f"[TOOL_CALLS]get_weather[ARGS]{json.dumps(ARGUMENTS)}",
    "muse_spark": '<atem:function_calls>\n<atem:invoke name="get_weather">\n'
    '<atem:parameter name="city">Paris, <b></atem:parameter>\n'
    '<atem:parameter name="days">3</atem:parameter>\n'
    '<atem:parameter name="tags">["a", "b"]</atem:parameter>\n'
    "</atem:invoke>\n</atem:function_calls>",
    "pythonic": "<|tool_call_start|>[get_weather(city='Paris, <b>', days=3, tags=['a', 'b'])]"
    "<|tool_call_end|>",
    "qwen3_coder": "<tool_call>\n<function=get_weather>\n"
    "<parameter=city>\nParis, <b>\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n"
    '<parameter=tags>\n["a", "b"]\n</parameter>\n</function>\n</tool_call>',
}
WRITTEN["laguna"] = WRITTEN["glm47"]


def read(text: str, answer_format: AnswerFormat, opening: str = "") -> Answer:
    options = OutputOptions(tools=TOOLS)
    parser = OutputParser(PieceTexts(list(text)), options, answer_format, opening)
    answer = Answer()
    for token_id in range(len(text)):
        answer.add(parser.push(token_id))
    answer.add(parser.finish(TextFinish.STOP))
    return answer


def by_mlx_lm(name: str, text: str) -> list[dict[str, object]]:
    module = importlib.import_module(f"mlx_lm.tool_parsers.{name}")
    body = text.removeprefix(module.tool_call_start).removesuffix(module.tool_call_end or "\0")
    parsed = module.parse_tool_call(body, tool_dicts(TOOLS))
    return parsed if isinstance(parsed, list) else [parsed]


def test_every_parser_of_mlx_lm_has_a_family_and_a_text_here() -> None:
    names = {m.name for m in pkgutil.iter_modules(mlx_lm.tool_parsers.__path__)}
    assert names == set(MLX_LM_NAMES) == set(WRITTEN)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_call_reads_as_mlx_lm_reads_it(name: str) -> None:
    header = " to=get_weather<|message|>" if name == "muse_spark" else ""
    answer = read(header + WRITTEN[name], AnswerFormat("", (), (), name))
    assert answer.content == ""
    assert [(c[1], json.loads(c[2])) for c in answer.calls] == [
        (call["name"], call["arguments"]) for call in by_mlx_lm(name, WRITTEN[name])
    ]


def test_a_parser_mlx_lm_gains_later_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("mlx_lm.tool_parsers.brand_new")
    module.tool_call_start, module.tool_call_end = "<<", ">>"  # type: ignore[attr-defined]
    module.parse_tool_call = lambda text, tools: {"name": text, "arguments": {"a": len(tools)}}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    answer = read("Well, <<get_time>> done", AnswerFormat("", (), (), "brand_new"))
    assert [c[1:] for c in answer.calls] == [["get_time", '{"a": 2}']]
    assert answer.content == "Well, done"


def test_a_parser_that_raises_makes_the_call_text(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("mlx_lm.tool_parsers.brand_new")
    module.tool_call_start, module.tool_call_end = "<<", ">>"  # type: ignore[attr-defined]
    module.parse_tool_call = lambda text, tools: text["name"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert read("<<x>>", AnswerFormat("", (), (), "brand_new")).content == "<<x>>"


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("{{ '<tool_call>\\n<function=' }}", "qwen"),
        ("<tool_call>\n{'name': tool_call.name", "hermes"),
        ("<tool_call>{{ name }}<arg_key>", "glm"),
        ("[AVAILABLE_TOOLS][TOOL_CALLS]", "mistral"),
        ("<|tool_call>call:<tool_call|>", "gemma4"),
        ("<|python_tag|>", "llama3"),
        ("nothing about tools", "hermes"),
    ],
)
def test_the_family_is_found_from_the_template(template: str, family: str) -> None:
    assert AnswerFormat(template, (), ()).name == family


def test_the_family_is_found_from_the_vocabulary_when_the_template_is_silent() -> None:
    vocabulary = ("<|tool_call_start|>", "<|tool_call_end|>", "hello")
    assert AnswerFormat("", (), vocabulary).name == "pythonic"


def test_a_bare_function_tag_is_a_call_where_tools_were_offered() -> None:
    text = "<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"
    qwen = AnswerFormat("<tool_call>\n<function=", (), ())
    assert [c[1:] for c in read(text, qwen).calls] == [["get_weather", '{"city": "Rome"}']]


@pytest.mark.parametrize(
    "text",
    [
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Rome"}}]',
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Rome"}, "id": "abcdefghi"}]',
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}',
        '[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"city": "Rome"}',
        '[TOOL_CALLS]get_weather{"city": "Rome"}',
    ],
)
def test_every_way_mistral_writes_a_call(text: str) -> None:
    answer = read(text, AnswerFormat("[TOOL_CALLS]", (), ()))
    assert [c[1:] for c in answer.calls] == [["get_weather", '{"city": "Rome"}']]
    assert len(answer.calls[0][0]) == 9


def test_a_client_gets_an_id_of_ours_and_not_the_one_the_model_counted() -> None:
    made = AnswerFormat("<|tool_calls_section_begin|>", (), ())
    ids = {read(WRITTEN["kimi_k2"], made).calls[0][0] for _ in range(5)}
    assert len(ids) == 5
    assert "functions.get_weather:0" not in ids


@pytest.mark.parametrize(
    ("raw", "schema", "value"),
    [
        ("007", {"type": "string"}, "007"),
        ("007", {"type": ["string", "integer"]}, "007"),
        ("7", {"type": ["string", "integer"]}, 7),
        ("3.0", {"type": "integer"}, 3),
        ("12345678901234567890123", {"type": "integer"}, 12345678901234567890123),
        ("1e400", {"type": "number"}, "1e400 as written"),
        ("True", {"type": "boolean"}, True),
        ("null", {"type": "string"}, "null"),
        ("None", {"type": ["string", "null"]}, None),
        ("{'a': (1, 2)}", {"type": "object"}, {"a": [1, 2]}),
        ('{"a": "\\d"}', {"type": "object"}, {"a": "\\d"}),
        ("[1, 2,]", {"anyOf": [{"type": "array"}, {"type": "null"}]}, [1, 2]),
        ("b", {"enum": ["a", "b"]}, "b"),
        ("2", {"enum": [1, 2]}, 2),
        ("5", {"$ref": "#/$defs/N"}, 5),
        ("five", {"type": "integer"}, "five"),
        ('{"a": 1}', {}, {"a": 1}),
        ("5", {}, "5"),
    ],
)
def test_a_raw_value_takes_the_type_its_schema_wants(
    raw: str, schema: dict[str, object], value: object
) -> None:
    properties = Properties.of({"properties": {"k": schema}, "$defs": {"N": {"type": "number"}}})
    text = json_value(raw, properties.types("k"))
    if value == "1e400 as written":
        assert text == "1e400"
    else:
        assert json.loads(text) == value


@pytest.mark.parametrize(
    ("written", "value"),
    [("1.5", 1.5), ("true", True), ("None", None), ('"x"', "x"), ("x", "x"), ("[1]", [1])],
)
def test_a_literal_is_what_it_looks_like(written: str, value: object) -> None:
    assert json.loads(json_literal(written)) == value


def test_json_nested_beyond_reason_is_refused() -> None:
    assert mend_object('{"a":' * 500 + "1" + "}" * 500) is None


def test_a_repeated_argument_counts_once() -> None:
    text = (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
        "<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"
    )
    answer = read(text, AnswerFormat("<tool_call>\n<function=", (), ()))
    assert answer.calls[0][2] == '{"city": "Rome"}'


class CountingPattern:
    """A pattern that counts the characters it was asked to look at."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern
        self.looked = 0

    def search(self, text: str, start: int = 0) -> re.Match[str] | None:
        self.looked += len(text) - start
        return self.pattern.search(text, start)


def test_a_long_value_without_delimiters_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counting = CountingPattern(gemma_calls.SCALAR_END)
    monkeypatch.setattr(gemma_calls, "SCALAR_END", counting)
    stream = gemma_calls.GemmaStream('<|"|>')
    written = "".join(stream.feed(piece) for piece in ["city:", *["word "] * 500, ",days:", "3}"])
    assert json.loads(written) == {"city": ("word " * 500).strip(), "days": 3}
    assert counting.looked < 2 * 2500


TAGGED = {  # a value in the place of VALUE, and what may stand inside its strings
    "qwen": ("<tool_call>\n<function=f>\n<parameter=a>\nVALUE\n</parameter>\n</function>\n"
             "</tool_call>", "</parameter></function></tool_call>"),
    "minimax": ('<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">VALUE</parameter>\n'
                "</invoke>\n</minimax:tool_call>", "</parameter></invoke></minimax:tool_call>"),
    "longcat": ("<longcat_tool_call>f<longcat_arg_key>a</longcat_arg_key><longcat_arg_value>VALUE"
                "</longcat_arg_value></longcat_tool_call>",
                "</longcat_arg_value></longcat_tool_call>"),
    "minicpm": ('<function name="f"><param name="a">VALUE</param></function>',
                "</param></function>"),
}  # fmt: skip


def read_tagged(family: str, value: str, pieces: int, tail: str = "") -> Answer:
    text = TAGGED[family][0].replace("VALUE", value) + tail
    cut = [text[at : at + pieces] for at in range(0, len(text), pieces)]
    parameters = {"type": "object", "properties": {"a": {"type": "object"}}}
    options = OutputOptions(tools=(ToolSpec("f", "", parameters),))
    parser = OutputParser(PieceTexts(cut), options, AnswerFormat(TAGGED[family][0], (), ()))
    answer = Answer()
    for at in range(len(cut)):
        answer.add(parser.push(at))
    answer.add(parser.finish(TextFinish.STOP))
    return answer


@pytest.mark.parametrize("pieces", [1, 7, 10_000])
@pytest.mark.parametrize("family", TAGGED)
def test_a_tag_inside_a_string_of_json_ends_no_value(family: str, pieces: int) -> None:
    value = {"text": f'say "{TAGGED[family][1]}" \\', "n": 1}
    answer = read_tagged(family, json.dumps(value), pieces, "Done.")
    assert [json.loads(call[2]) for call in answer.calls] == [{"a": value}]
    assert answer.content == "Done."


@pytest.mark.parametrize("pieces", [1, 7, 10_000])
@pytest.mark.parametrize("family", TAGGED)
def test_a_quote_that_is_never_closed_does_not_hide_the_end(family: str, pieces: int) -> None:
    answer = read_tagged(family, '{"text": "open}', pieces)
    assert [call[1] for call in answer.calls] == ["f"]
    assert json.loads(answer.calls[0][2]) == {"a": '{"text": "open}'}
