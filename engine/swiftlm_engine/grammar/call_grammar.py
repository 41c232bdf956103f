"""Call grammar: how each family writes a call, as a grammar that leaves only the arguments open.

Used when a request forces a tool, and for strict tools once the model has begun a call.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from swiftlm_engine.grammar.gemma_grammar import gemma
from swiftlm_engine.grammar.lark import GrammarBuilder, in_order, part_of
from swiftlm_engine.grammar.tagged_grammar import ANY_OBJECT, Tags, shapes_of, tagged
from swiftlm_engine.text.chat import ToolSpec
from swiftlm_engine.text.tools.nested_tags import TAG_MARK
from swiftlm_engine.text.tools.pythonic_calls import BARE_KEY
from swiftlm_engine.text.tools.schema import CannotHold, Shape
from swiftlm_engine.text.tools.tagged_value import ValueStyle

# ruff: noqa: RUF001 - the tokens of DeepSeek are spelled with wide bars

MAX_CALLS = 16


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """`trigger` is what a call (or a run of calls) begins with; `write` the rest of one call."""

    trigger: str
    write: Callable[[GrammarBuilder, ToolSpec], str]
    open: str = ""  # before the first call
    call_start: str = ""  # before each call
    separator: str = ""
    end: str = ""  # after the last


def forced_calls(
    builder: GrammarBuilder, syntax: CallSyntax, tools: Sequence[ToolSpec], parallel: bool
) -> str:
    """One call or more, from the trigger on."""
    return f"{builder.literal(syntax.trigger)} {calls(builder, syntax, tools, parallel)}"


def calls(
    builder: GrammarBuilder, syntax: CallSyntax, tools: Sequence[ToolSpec], parallel: bool
) -> str:
    """What follows the trigger."""
    written = [_written(builder, syntax, tool) for tool in tools]
    call = builder.rule(f"{builder.literal(syntax.call_start)} ({' | '.join(written)})")
    between = builder.literal(syntax.separator)
    more = f"({between} {call}){{0,{MAX_CALLS - 1}}}" if parallel else ""
    return f"{builder.literal(syntax.open)} {call} {more} {builder.literal(syntax.end)}"


def _written(builder: GrammarBuilder, syntax: CallSyntax, tool: ToolSpec) -> str:
    try:
        return syntax.write(builder, tool)
    except CannotHold as error:
        raise CannotHold(f"tool '{tool.name}': {error}") from error


def syntax_of(
    family: str, template: str, vocabulary: Mapping[str, int], suffix: str = ""
) -> CallSyntax:
    """The way of a family, and of the version of it that the template speaks."""
    if family == "mistral":
        return _MISTRAL if "[ARGS]" in vocabulary else _MISTRAL_LIST
    if family == "deepseek":
        return _DEEPSEEK_V3 if "function<｜tool▁sep｜>" in template else _DEEPSEEK
    if family in ("dsml", "gigachat35"):
        return _dsml(template, "DSML" if family == "dsml" else "GCML")
    if family == "gigachat":
        return _GIGACHAT if "<|function_call|>" in template else _GIGACHAT_3
    if family == "hunyuan":
        return _hunyuan(suffix)
    return _SYNTAXES.get(family, _HERMES)


# -- JSON arguments


def json_arguments(builder: GrammarBuilder, tool: ToolSpec) -> str:
    """An object whatever else the schema allows: every reader wants one."""
    return builder.schema({**ANY_OBJECT, **(tool.parameters or {})})


def _around(before: str, after: str) -> Callable[[GrammarBuilder, ToolSpec], str]:
    """`before` names the tool at NAME."""

    def write(builder: GrammarBuilder, tool: ToolSpec) -> str:
        head = before.replace("NAME", tool.name)
        return f"{builder.literal(head)} {json_arguments(builder, tool)} {builder.literal(after)}"

    return write


def _bare_json(builder: GrammarBuilder, tool: ToolSpec) -> str:
    """All of it JSON: an answer by a schema may stand in its place, and begin the same."""
    root = {**ANY_OBJECT, **(tool.parameters or {})}
    call = {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "parameters": root},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }
    return builder.schema(part_of(call, root))


def _kimi_k2(builder: GrammarBuilder, tool: ToolSpec) -> str:
    head = builder.literal(f"<|tool_call_begin|>functions.{tool.name}:")
    begin = builder.literal("<|tool_call_argument_begin|>")
    end = builder.literal("<|tool_call_end|>")
    return f"{head} /[0-9]{{1,3}}/ {begin} {json_arguments(builder, tool)} {end}"


def _xtml(builder: GrammarBuilder, tool: ToolSpec) -> str:
    head = builder.literal(f'<|open|>call tool="{tool.name}" index="')
    return f"{head} /[1-9][0-9]?/ {tagged(_XTML_TAGS)(builder, tool)}"


def _solar_open(builder: GrammarBuilder, tool: ToolSpec) -> str:
    start = builder.literal("<|tool_call:begin|>")
    head = builder.literal(f"<|tool_call:name|>{tool.name}<|tool_call:args|>")
    end = builder.literal("<|tool_call:end|>")
    return f"{start} /[A-Za-z0-9_-]{{4,24}}/ {head} {json_arguments(builder, tool)} {end}"


def _pythonic(builder: GrammarBuilder, tool: ToolSpec) -> str:
    """JSON values are Python's but for three words, which the reader knows."""
    written = [_keywords(builder, tool, one) for one in shapes_of(tool)]
    return f"{builder.literal(tool.name + '(')} ({' | '.join(written)}) {builder.literal(')')}"


def _keywords(builder: GrammarBuilder, tool: ToolSpec, of: Shape) -> str:
    root = tool.parameters or ANY_OBJECT

    def member(key: str) -> str:
        value = builder.schema(part_of(of.properties[key], root))
        if BARE_KEY.fullmatch(key):
            return f"{builder.literal(key + '=')} {value}"
        name = json.dumps(key, ensure_ascii=False)
        return f"{builder.literal(f'**{{{name}: ')} {value} {builder.literal('}')}"

    wanted = [member(k) for k in of.properties if k in of.required]
    others = [member(k) for k in of.properties if k not in of.required]
    return in_order(wanted, others, '", "') or '""'


# -- the families


_HERMES = CallSyntax(
    "<tool_call>",
    _around('\n{"name": "NAME", "arguments": ', "}\n</tool_call>"),
    separator="\n<tool_call>",
)
_MISTRAL = CallSyntax("[TOOL_CALLS]", _around("NAME[ARGS]", ""), separator="[TOOL_CALLS]")
_MISTRAL_LIST = CallSyntax(
    "[TOOL_CALLS]", _around('{"name": "NAME", "arguments": ', "}"), " [", separator=", ", end="]"
)
_DEEPSEEK = CallSyntax(
    "<｜tool▁calls▁begin｜>",
    _around("<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    end="<｜tool▁calls▁end｜>",
)
_DEEPSEEK_V3 = CallSyntax(
    "<｜tool▁calls▁begin｜>",
    _around(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n", "\n```<｜tool▁call▁end｜>"
    ),
    separator="\n",
    end="<｜tool▁calls▁end｜>",
)


_GIGACHAT = CallSyntax("<|function_call|>", _around('{"name": "NAME", "arguments": ', "}"))
_GIGACHAT_3 = CallSyntax(
    "function call<|role_sep|>\n", _around('{"name": "NAME", "arguments": ', "}")
)


def _dsml(template: str, name: str) -> CallSyntax:
    space = " " if re.search(f"<｜{name}｜ ", template) else ""
    block = "calls" if space else "function_calls" if "function_calls" in template else "tool_calls"
    token = f"｜{name}｜{space}"
    return _invoke(token + block, token, ' string="IS_STRING"')


_JSON_CALL = _around('{"name": "NAME", "arguments": ', "}")


def _qwen(section: str) -> CallSyntax:
    tags = Tags(
        "<function=NAME>\n",
        "<parameter=KEY>\n",
        "</parameter>",
        "</function>\n",
        ValueStyle.WRAPPED,
        after="\n",
        avoid=("\n</function>", "\n<parameter="),
    )
    start, end = f"<{section}>", f"</{section}>"
    between = f"{end}\n{start}"
    return CallSyntax(start, tagged(tags), call_start="\n", separator=between, end=end)


def _glm(prefix: str) -> CallSyntax:
    key, value = f"{prefix}arg_key", f"{prefix}arg_value"
    start, end = f"<{prefix}tool_call>", f"</{prefix}tool_call>"
    tags = Tags(
        "NAME",
        f"<{key}>KEY</{key}><{value}>",
        f"</{value}>",
        "",
        ValueStyle.LITERAL,
        keys=r"[^<>\s](?:[^<>]*[^<>\s])?",
        avoid=(end,),
    )
    return CallSyntax(start, tagged(tags), separator=end + start, end=end)


def _hunyuan(suffix: str) -> CallSyntax:
    start, end = f"<tool_call{suffix}>", f"</tool_call{suffix}>\n"
    key, value = f"arg_key{suffix}", f"arg_value{suffix}"
    tags = Tags(
        f"{start}NAME<tool_sep{suffix}>\n",
        f"<{key}>KEY</{key}>\n<{value}>",
        f"</{value}>",
        end,
        ValueStyle.LITERAL,
        keys=r"[^<>\s](?:[^<>]*[^<>\s])?",
        after="\n",
        avoid=(end.strip(),),
    )
    section, section_end = f"<tool_calls{suffix}>", f"</tool_calls{suffix}>"
    return CallSyntax(section, tagged(tags), open="\n", end=section_end)


def _invoke(
    section: str, prefix: str = "", kind: str = "", style: ValueStyle = ValueStyle.RAW
) -> CallSyntax:
    wrapped = (f"\n</{prefix}invoke>", f"\n<{prefix}parameter")
    avoid = wrapped if style is ValueStyle.WRAPPED else (f"</{prefix}invoke>",)
    tags = Tags(
        f'<{prefix}invoke name="NAME">\n',
        f'<{prefix}parameter name="KEY"{kind}>',
        f"</{prefix}parameter>",
        f"</{prefix}invoke>\n",
        style,
        after="\n",
        avoid=avoid,
    )
    return CallSyntax(f"<{section}>", tagged(tags), open="\n", end=f"</{section}>")


def _gemma_calls(start: str, end: str, delimiter: str) -> CallSyntax:
    return CallSyntax(start, gemma(delimiter), separator=end + start, end=end)


def _list(start: str, end: str, write: Callable[[GrammarBuilder, ToolSpec], str]) -> CallSyntax:
    return CallSyntax(start, write, open="[", separator=", ", end=f"]{end}")


_MINICPM_TAGS = Tags(
    '"NAME">',
    '<param name="KEY">',
    "</param>",
    "</function>",
    ValueStyle.CDATA,
)
_XTML_TAGS = Tags(
    '"<|sep|>',
    '<|open|>argument key="KEY" type="KIND"<|sep|>',
    "<|close|>argument<|sep|>",
    "<|close|>call<|sep|>",
    keys=r"(?s:.+)",
    escaped=True,
)
_SOLAR_TAGS = Tags(
    "<|tool_call:start|>NAME\n",
    "<|tool_arg:start|>KEY<|tool_arg:value|>",
    "<|tool_arg:end|>",
    "<|tool_call:end|>",
    after="\n",
    avoid=("<|tool_call:end|>",),
)
_MINIMAX_M3_TAGS = Tags(
    f'{TAG_MARK}<invoke name="NAME">',
    f"{TAG_MARK}<KEY>",
    f"{TAG_MARK}</KEY>",
    f"{TAG_MARK}</invoke>\n",
    keys=r"(?!item$)[^<>/\s](?:[^<>]*[^<>\s])?",
    avoid=(TAG_MARK,),
)
_STEP3_TAGS = Tags(
    '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="NAME">\n',
    '<steptml:parameter name="KEY">',
    "</steptml:parameter>",
    "</steptml:invoke><｜tool_call_end｜>\n",
    after="\n",
    avoid=("</steptml:invoke>",),
)
_PLAMO = "<|plamo:{}:plamo|>"
_SYNTAXES = {
    "step3": CallSyntax(
        "<｜tool_calls_begin｜>", tagged(_STEP3_TAGS), open="\n", end="<｜tool_calls_end｜>"
    ),
    "xlam": _list("", "", _JSON_CALL),
    "function_call": CallSyntax(
        "<function_call>",
        _around(' {"name": "NAME", "arguments": ', "}"),
        separator="\n<function_call>",
    ),
    "minimax_m3": CallSyntax(
        f"{TAG_MARK}<tool_call>",
        tagged(_MINIMAX_M3_TAGS),
        open="\n",
        end=f"{TAG_MARK}</tool_call>",
    ),
    "solar_open": CallSyntax("<|tool_calls|>", _solar_open),
    "solar_open_2": CallSyntax("", tagged(_SOLAR_TAGS), separator="\n"),
    "apertus": _list("<|tools_prefix|>", "<|tools_suffix|>", _around('{"NAME": ', "}")),
    "plamo": CallSyntax(
        _PLAMO.format("begin_tool_requests"),
        _around(
            "".join(map(_PLAMO.format, ("begin_tool_request", "begin_tool_name")))
            + "NAME"
            + "".join(map(_PLAMO.format, ("end_tool_name", "begin_tool_arguments"))),
            "".join(map(_PLAMO.format, ("end_tool_arguments", "end_tool_request"))),
        ),
        end=_PLAMO.format("end_tool_requests"),
    ),
    "internlm": CallSyntax(
        "<|action_start|><|plugin|>",
        _around('\n{"name": "NAME", "parameters": ', "}<|action_end|>"),
        separator="<|action_start|><|plugin|>",
    ),
    "pangu": _list("[unused11]", "[unused12]", _JSON_CALL),
    "olmo": CallSyntax("<function_calls>", _pythonic, separator="\n", end="</function_calls>"),
    "command_r": CallSyntax(
        "Action:",
        _around('{"tool_name": "NAME", "parameters": ', "}"),
        open=" ```json\n[\n",
        separator=",\n",
        end="\n]\n```",
    ),
    "hermes": _HERMES,
    "qwen": _qwen("tool_call"),
    "seed": _qwen("seed:tool_call"),
    "glm": _glm(""),
    "longcat": _glm("longcat_"),
    "minimax": _invoke("minimax:tool_call", style=ValueStyle.WRAPPED),
    "muse": _invoke("atem:function_calls", "atem:", style=ValueStyle.LITERAL),
    "minicpm": CallSyntax("<function name=", tagged(_MINICPM_TAGS), separator="<function name="),
    "kimi_k3": CallSyntax("<|open|>tools<|sep|>", _xtml, end="<|close|>tools<|sep|>"),
    "kimi_k2": CallSyntax(
        "<|tool_calls_section_begin|>", _kimi_k2, end="<|tool_calls_section_end|>"
    ),
    "gemma4": _gemma_calls("<|tool_call>", "<tool_call|>", '<|"|>'),
    "function_gemma": _gemma_calls("<start_function_call>", "<end_function_call>", "<escape>"),
    "pythonic": _list("<|tool_call_start|>", "<|tool_call_end|>", _pythonic),
    "llama4": _list("", "", _pythonic),
    "llama3": CallSyntax("", _bare_json, separator="; "),
    "nemotron": _list("<TOOLCALL>", "</TOOLCALL>", _JSON_CALL),
    "tool_calls": _list("<tool_calls>", "</tool_calls>", _JSON_CALL),
    "cohere": _list(
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        _around('{"tool_name": "NAME", "parameters": ', "}"),
    ),
    "granite": _list("<|tool_call|>", "", _JSON_CALL),
    "functools": _list("functools", "", _JSON_CALL),
}
