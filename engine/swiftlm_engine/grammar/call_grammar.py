"""Call grammar: how each family writes a call, as a grammar that leaves only the arguments open.

Used when a request forces a tool, and for strict tools once the model has begun a call.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from swiftlm_engine.grammar.lark import GrammarBuilder, Schema, in_order, properties_of
from swiftlm_engine.text.chat import ToolSpec

# ruff: noqa: RUF001 - the tokens of DeepSeek are spelled with wide bars

ANY_OBJECT: Schema = {"type": "object"}
MAX_CALLS = 16
COMMA = '","'
SCALARS = {
    "integer": r"/-?(0|[1-9][0-9]{0,18})/",
    "number": r"/-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,17})?/",
    "boolean": '("true" | "false")',
    "null": '"null"',
}


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
    written = [syntax.write(builder, tool) for tool in tools]
    call = builder.rule(f"{builder.literal(syntax.call_start)} ({' | '.join(written)})")
    between = builder.literal(syntax.separator)
    more = f"({between} {call}){{0,{MAX_CALLS - 1}}}" if parallel else ""
    return f"{builder.literal(syntax.open)} {call} {more} {builder.literal(syntax.end)}"


def syntax_of(family: str, template: str, vocabulary: Mapping[str, int]) -> CallSyntax:
    """The way of a family, and of the version of it that the template speaks."""
    if family == "mistral":
        return _MISTRAL if "[ARGS]" in vocabulary else _MISTRAL_LIST
    if family == "deepseek":
        return _DEEPSEEK_V3 if "function<｜tool▁sep｜>" in template else _DEEPSEEK
    if family == "dsml":
        return _dsml(template)
    return _SYNTAXES.get(family, _HERMES)


# -- JSON arguments


def _arguments(builder: GrammarBuilder, tool: ToolSpec) -> str:
    return builder.schema(tool.parameters or ANY_OBJECT)


def _around(before: str, after: str) -> Callable[[GrammarBuilder, ToolSpec], str]:
    """`before` names the tool at NAME."""

    def write(builder: GrammarBuilder, tool: ToolSpec) -> str:
        head = before.replace("NAME", tool.name)
        return f"{builder.literal(head)} {_arguments(builder, tool)} {builder.literal(after)}"

    return write


def _kimi_k2(builder: GrammarBuilder, tool: ToolSpec) -> str:
    head = builder.literal(f"<|tool_call_begin|>functions.{tool.name}:")
    begin = builder.literal("<|tool_call_argument_begin|>")
    end = builder.literal("<|tool_call_end|>")
    return f"{head} /[0-9]{{1,3}}/ {begin} {_arguments(builder, tool)} {end}"


def _xtml(builder: GrammarBuilder, tool: ToolSpec) -> str:
    head = builder.literal(f'<|open|>call tool="{tool.name}" index="')
    tags = _Tags(
        '"<|sep|>',
        '<|open|>argument key="KEY" type="KIND"<|sep|>',
        "<|close|>argument<|sep|>",
        "<|close|>call<|sep|>",
    )
    return f"{head} /[1-9][0-9]?/ {_tagged(tags)(builder, tool)}"


def _pythonic(builder: GrammarBuilder, tool: ToolSpec) -> str:
    """JSON values are Python's but for three words, which the reader knows."""
    properties, required = properties_of(tool.parameters or ANY_OBJECT)

    def member(key: str) -> str:
        return f"{builder.literal(key + '=')} {builder.schema(properties[key])}"

    wanted = [member(k) for k in required]
    others = [member(k) for k in properties if k not in required]
    members = in_order(wanted, others, '", "')
    return f"{builder.literal(tool.name + '(')} {members} {builder.literal(')')}"


# -- tagged arguments


@dataclass(frozen=True, slots=True)
class _Tags:
    """KEY, NAME and KIND stand for what the tool says."""

    call: str
    param: str
    param_end: str
    call_end: str


def _tagged(tags: _Tags) -> Callable[[GrammarBuilder, ToolSpec], str]:
    def write(builder: GrammarBuilder, tool: ToolSpec) -> str:
        properties, required = properties_of(tool.parameters or ANY_OBJECT)
        members = []
        for key, schema in properties.items():
            member = _tagged_value(builder, tags, key, schema)
            members.append(member if key in required else f"({member})?")
        head, end = tags.call.replace("NAME", tool.name), tags.call_end
        return f"{builder.literal(head)} {' '.join(members)} {builder.literal(end)}"

    return write


def _tagged_value(builder: GrammarBuilder, tags: _Tags, key: str, schema: Schema) -> str:
    kind = schema.get("type")
    is_string = kind == "string" or isinstance(schema.get("enum"), list)
    named = str(kind) if isinstance(kind, str) else "object"
    head = tags.param.replace("KEY", key).replace("KIND", named)
    head = head.replace("IS_STRING", "true" if is_string else "false")
    return f"{builder.literal(head)} {_raw_value(builder, schema, is_string, tags.param_end)}"


def _raw_value(builder: GrammarBuilder, schema: Schema, is_string: bool, end: str) -> str:
    """A value and its end tag; strings stand as they are."""
    values = schema.get("enum")
    if isinstance(values, list) and values:
        words = [v if isinstance(v, str) else json.dumps(v) for v in values]
        choices = " | ".join(builder.literal(word) or '""' for word in words)
        return f"({choices}) {builder.literal(end)}"
    if is_string:
        return builder.text_until(end)
    return f"{builder.schema(schema)} {builder.literal(end)}"


# -- Gemma's arguments


def _gemma(delimiter: str) -> Callable[[GrammarBuilder, ToolSpec], str]:
    def write(builder: GrammarBuilder, tool: ToolSpec) -> str:
        value = _gemma_object(builder, tool.parameters or ANY_OBJECT, delimiter, 0)
        return f"{builder.literal(f'call:{tool.name}')} {value}"

    return write


def _gemma_value(builder: GrammarBuilder, schema: Schema, delimiter: str, depth: int) -> str:
    quote = builder.literal(delimiter)
    if isinstance(values := schema.get("enum"), list) and values:
        return "(" + " | ".join(_gemma_word(builder, v, quote) for v in values) + ")"
    for name in ("anyOf", "oneOf"):
        if isinstance(parts := schema.get(name), list) and parts:
            known = [p for p in parts if isinstance(p, Mapping)]
            values_of = [_gemma_value(builder, p, delimiter, depth + 1) for p in known]
            return "(" + " | ".join(values_of) + ")"
    kind = schema.get("type")
    if isinstance(kind, list):
        values_of = [_gemma_value(builder, {**schema, "type": k}, delimiter, depth) for k in kind]
        return "(" + " | ".join(values_of) + ")"
    if kind == "object":
        return _gemma_object(builder, schema, delimiter, depth)
    if kind == "array":
        items = schema.get("items")
        items = items if isinstance(items, Mapping) else {}
        item = _gemma_value(builder, items, delimiter, depth + 1)
        return builder.rule(f'"[" ({item} ("," {item})*)? "]"')
    # What the schema leaves open is written as a string.
    return SCALARS.get(str(kind)) or f"{quote} {builder.text_until(delimiter)}"


def _gemma_object(builder: GrammarBuilder, schema: Schema, delimiter: str, depth: int) -> str:
    properties, required = properties_of(schema) if depth < 12 else ({}, [])

    def member(key: str) -> str:
        value = _gemma_value(builder, properties[key], delimiter, depth + 1)
        return f"{builder.literal(key + ':')} {value}"

    wanted = [member(k) for k in required]
    others = [member(k) for k in properties if k not in required]
    return builder.rule(f'"{{" {in_order(wanted, others, COMMA)} "}}"')


def _gemma_word(builder: GrammarBuilder, value: object, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote} {builder.literal(value)} {quote}"
    return builder.literal(json.dumps(value))


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


def _dsml(template: str) -> CallSyntax:
    space = " " if re.search(r"<｜DSML｜ ", template) else ""
    block = "calls" if space else "function_calls" if "function_calls" in template else "tool_calls"
    token = f"｜DSML｜{space}"
    return _invoke(token + block, token, ' string="IS_STRING"')


_JSON_CALL = _around('{"name": "NAME", "arguments": ', "}")


def _qwen(section: str) -> CallSyntax:
    tags = _Tags("<function=NAME>\n", "<parameter=KEY>\n", "\n</parameter>\n", "</function>\n")
    start, end = f"<{section}>", f"</{section}>"
    between = f"{end}\n{start}"
    return CallSyntax(start, _tagged(tags), call_start="\n", separator=between, end=end)


def _glm(prefix: str) -> CallSyntax:
    key, value = f"{prefix}arg_key", f"{prefix}arg_value"
    tags = _Tags("NAME", f"<{key}>KEY</{key}><{value}>", f"</{value}>", "")
    start, end = f"<{prefix}tool_call>", f"</{prefix}tool_call>"
    return CallSyntax(start, _tagged(tags), separator=end + start, end=end)


def _invoke(section: str, prefix: str = "", kind: str = "") -> CallSyntax:
    tags = _Tags(
        f'<{prefix}invoke name="NAME">\n',
        f'<{prefix}parameter name="KEY"{kind}>',
        f"</{prefix}parameter>\n",
        f"</{prefix}invoke>\n",
    )
    return CallSyntax(f"<{section}>", _tagged(tags), open="\n", end=f"</{section}>")


def _gemma_calls(start: str, end: str, delimiter: str) -> CallSyntax:
    return CallSyntax(start, _gemma(delimiter), separator=end + start, end=end)


def _list(start: str, end: str, write: Callable[[GrammarBuilder, ToolSpec], str]) -> CallSyntax:
    return CallSyntax(start, write, open="[", separator=", ", end=f"]{end}")


_MINICPM_TAGS = _Tags('"NAME">', '<param name="KEY">', "</param>", "</function>")
_SYNTAXES = {
    "hermes": _HERMES,
    "qwen": _qwen("tool_call"),
    "seed": _qwen("seed:tool_call"),
    "glm": _glm(""),
    "longcat": _glm("longcat_"),
    "minimax": _invoke("minimax:tool_call"),
    "muse": _invoke("atem:function_calls", "atem:"),
    "minicpm": CallSyntax("<function name=", _tagged(_MINICPM_TAGS), separator="<function name="),
    "kimi_k3": CallSyntax("<|open|>tools<|sep|>", _xtml, end="<|close|>tools<|sep|>"),
    "kimi_k2": CallSyntax(
        "<|tool_calls_section_begin|>", _kimi_k2, end="<|tool_calls_section_end|>"
    ),
    "gemma4": _gemma_calls("<|tool_call>", "<tool_call|>", '<|"|>'),
    "function_gemma": _gemma_calls("<start_function_call>", "<end_function_call>", "<escape>"),
    "pythonic": _list("<|tool_call_start|>", "<|tool_call_end|>", _pythonic),
    "llama4": _list("", "", _pythonic),
    "llama3": CallSyntax("", _around('{"name": "NAME", "parameters": ', "}"), separator="; "),
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
