"""Families: what each kind of model writes around its calls, and how to tell which kind one is.

A family says what starts a call and which reader goes on from there. New parsers of mlx-lm that
have no family here are used as they are.
"""

from __future__ import annotations

# ruff: noqa: RUF001 - the tokens of DeepSeek are spelled with wide bars
import importlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from swiftlm_engine.text.chat import ToolSpec, tool_dicts
from swiftlm_engine.text.emitter import Emitter
from swiftlm_engine.text.reader import CallReader, Start
from swiftlm_engine.text.tools import syntaxes
from swiftlm_engine.text.tools.borrowed import BorrowedReader, parser_of
from swiftlm_engine.text.tools.gemma_calls import GemmaCallsReader, GemmaSyntax
from swiftlm_engine.text.tools.header_calls import (
    CallHeader,
    HeaderCallsReader,
    HeaderSyntax,
    deepseek_header,
    kimi_header,
    mistral_header,
    plamo_header,
    solar_header,
)
from swiftlm_engine.text.tools.json_calls import JsonCallsReader, JsonCallsSyntax
from swiftlm_engine.text.tools.nested_tags import TAG_MARK, parse_nested_calls
from swiftlm_engine.text.tools.pythonic_calls import BareListReader, PythonicReader
from swiftlm_engine.text.tools.tagged_calls import TaggedCallsReader, TagSyntax
from swiftlm_engine.text.tools.tagged_value import ValueStyle
from swiftlm_engine.text.tools.values import Properties


class SniffReader:
    """`choose` gets the first character that is no white space."""

    def __init__(self, choose: Callable[[str], CallReader]) -> None:
        self._choose = choose
        self._reader: CallReader | None = None
        self._held = ""

    def feed(self, text: str) -> str | None:
        if self._reader is None:
            self._held += text
            first = self._held.lstrip()[:1]
            if not first:
                return None
            self._reader = self._choose(first)
            text = self._held
        return self._reader.feed(text)

    def finish(self, cut: bool) -> None:
        if self._reader is None:
            self._reader = self._choose("{")
            self._reader.feed(self._held)
        self._reader.finish(cut)


Starts = dict[str, Start]


@dataclass(frozen=True, slots=True)
class CallContext:
    """What the readers of one answer need."""

    emitter: Emitter
    mark: Callable[[str], str]
    tools: Sequence[dict[str, Any]]  # as a template gets them
    properties: Mapping[str, Properties]

    @property
    def known(self) -> Collection[str]:
        return self.properties.keys()

    def properties_of(self, name: str) -> Properties:
        return self.properties.get(name) or Properties({}, {})


def call_context(
    emitter: Emitter, mark: Callable[[str], str], tools: Sequence[ToolSpec]
) -> CallContext:
    properties = {tool.name: Properties.of(tool.parameters) for tool in tools}
    return CallContext(emitter, mark, tool_dicts(tools), properties)


def _nothing(_: CallContext) -> Starts:
    return {}


@dataclass(frozen=True, slots=True)
class ToolFamily:
    name: str
    starts: Callable[[CallContext], Starts]
    bare: Callable[[CallContext], Starts] = _nothing
    controls: tuple[str, ...] = ()  # control tokens its markers are made of
    trims: bool = True  # templates put white space between content and calls
    interrupts: tuple[str, ...] = ()  # what ends thoughts that are not closed
    short_ids: bool = False  # templates refuse ids other than nine letters and digits
    suffix: str = ""  # of its tags, where each checkpoint has its own
    counted_ids: bool = False  # models write ids that carry the name and a number


# -- readers


def _json(context: CallContext, start: str, *ends: str, bare: bool = False) -> Start:
    syntax = JsonCallsSyntax("" if bare else start, ends, bare)
    return Start(lambda: JsonCallsReader(context.emitter, syntax, context.known), replay=bare)


def _tagged(context: CallContext, syntax: TagSyntax, start: str = "") -> Start:
    def make() -> CallReader:
        return TaggedCallsReader(context.emitter, syntax, context.properties_of, start)

    return Start(make, replay=not start)


def _headed(context: CallContext, syntax: HeaderSyntax, replay: bool = False) -> Start:
    return Start(lambda: HeaderCallsReader(context.emitter, syntax), replay)


def _borrowed(context: CallContext, module: str, start: str, end: str) -> Start:
    parse = parser_of(importlib.import_module(f"mlx_lm.tool_parsers.{module}"))
    return Start(lambda: BorrowedReader(context.emitter, parse, context.tools, start, end))


def _bare_list(context: CallContext) -> Start:
    return Start(partial(BareListReader, context.emitter, context.known), replay=True)


# -- families


def _tool_call_tag(context: CallContext) -> Starts:
    """One tag, three syntaxes: fine-tunes mix them, so what follows the tag decides."""
    start, end = context.mark("<tool_call>"), context.mark("</tool_call>")

    def choose(first: str) -> CallReader:
        if first in "{[":
            return _json(context, start, end).make()
        syntax = syntaxes.qwen if first == "<" else syntaxes.glm
        return _tagged(context, syntax(context.mark), start).make()

    return {start: Start(lambda: SniffReader(choose))}


def _qwen(context: CallContext) -> Starts:
    bare = _tagged(context, syntaxes.qwen(context.mark))
    return _tool_call_tag(context) | {"<function=": bare}


def _seed(context: CallContext) -> Starts:
    syntax = syntaxes.qwen(context.mark, "seed:tool_call")
    start = syntax.section_start
    return {start: _tagged(context, syntax, start), "<function=": _tagged(context, syntax)}


def _longcat(context: CallContext) -> Starts:
    syntax = syntaxes.glm(context.mark, "longcat_")
    start, end = syntax.section_start, syntax.section_end

    def choose(first: str) -> CallReader:
        kind = _json(context, start, end) if first in "{[" else _tagged(context, syntax, start)
        return kind.make()

    return {start: Start(lambda: SniffReader(choose))}


def _minimax(context: CallContext) -> Starts:
    start, end = context.mark("<minimax:tool_call>"), context.mark("</minimax:tool_call>")
    return {start: _tagged(context, syntaxes.invoke(start, end, style=ValueStyle.WRAPPED), start)}


def _muse(context: CallContext) -> Starts:
    start, end = context.mark("<atem:function_calls>"), context.mark("</atem:function_calls>")
    syntax = syntaxes.invoke(start, end, "atem:", ValueStyle.LITERAL)
    return {start: _tagged(context, syntax, start)}


def _dsml(context: CallContext, name: str = "DSML") -> Starts:
    """DeepSeek's block is called otherwise in each version, and V4.1 writes a space."""
    token = context.mark(f"｜{name}｜")
    starts: Starts = {}
    for block, space in (("function_calls", ""), ("tool_calls", ""), ("calls", " ")):
        start, end = f"<{token}{space}{block}>", f"</{token}{space}{block}>"
        syntax = syntaxes.invoke(start, end, token + space)
        starts[start] = _tagged(context, syntax, start)
    return starts


def _minimax_m3(context: CallContext) -> Starts:
    start, end = (context.mark(f"{TAG_MARK}<{tag}>") for tag in ("tool_call", "/tool_call"))
    reader = partial(BorrowedReader, context.emitter, parse_nested_calls, context.tools, start, end)
    return {start: Start(reader)}


def _hunyuan(suffix: str) -> Callable[[CallContext], Starts]:
    def starts(context: CallContext) -> Starts:
        syntax = syntaxes.hunyuan(context.mark, suffix)
        start = syntax.section_start
        return {start: _tagged(context, syntax, start), syntax.call_start: _tagged(context, syntax)}

    return starts


def _step3(context: CallContext) -> Starts:
    syntax = syntaxes.step3(context.mark)
    start = syntax.section_start
    return {start: _tagged(context, syntax, start), syntax.call_start: _tagged(context, syntax)}


def _solar_open_2(context: CallContext) -> Starts:
    syntax = syntaxes.solar(context.mark)
    return {syntax.call_start: _tagged(context, syntax)}


def _minicpm(context: CallContext) -> Starts:
    return {"<function name=": _tagged(context, syntaxes.minicpm(context.mark))}


def _xtml(context: CallContext) -> Starts:
    syntax = syntaxes.xtml(context.mark)
    return {syntax.section_start: _tagged(context, syntax, syntax.section_start)}


def _sections(
    context: CallContext,
    parse: Callable[[str], CallHeader | None],
    section: str,
    section_end: str,
    call: str,
    call_end: str,
) -> Starts:
    section, section_end, call, call_end = map(context.mark, (section, section_end, call, call_end))
    syntax = HeaderSyntax(section, parse, call, call_end, section_end)
    bare = HeaderSyntax("", parse, call, call_end, section_end)
    return {section: _headed(context, syntax), call: _headed(context, bare, replay=True)}


def _kimi(context: CallContext) -> Starts:
    return _sections(
        context, kimi_header, "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
        "<|tool_call_begin|>", "<|tool_call_end|>",
    )  # fmt: skip


def _deepseek(context: CallContext) -> Starts:
    return _sections(
        context, deepseek_header, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
    )  # fmt: skip


def _solar_open(context: CallContext) -> Starts:
    return _sections(
        context, solar_header, "<|tool_calls|>", "<|calls|>", "<|tool_call:begin|>",
        "<|tool_call:end|>",
    )  # fmt: skip


def _plamo(context: CallContext) -> Starts:
    section, section_end, call, call_end = (
        f"<|plamo:{tag}:plamo|>"
        for tag in (
            "begin_tool_requests", "end_tool_requests", "begin_tool_request", "end_tool_request"
        )
    )  # fmt: skip
    return _sections(context, plamo_header, section, section_end, call, call_end)


def _gigachat(context: CallContext) -> Starts:
    """The call is a message of its own; since 3.1 a token says so."""
    mark, end = context.mark, context.mark("<|message_sep|>")
    header = f"function call{mark('<|role_sep|>')}\n"
    starts = (header, f"{end}\n\n{header}", mark("<|function_call|>"))
    return {start: _json(context, start, end) for start in starts}


def _apertus(context: CallContext) -> Starts:
    start, end = context.mark("<|tools_prefix|>"), context.mark("<|tools_suffix|>")
    syntax = JsonCallsSyntax(start, (end,), keyed=True)
    return {start: Start(lambda: JsonCallsReader(context.emitter, syntax, context.known))}


def _olmo(context: CallContext) -> Starts:
    start, end = context.mark("<function_calls>"), context.mark("</function_calls>")
    return {start: Start(partial(PythonicReader, context.emitter, start, end, rows=True))}


def _mistral(context: CallContext) -> Starts:
    start = context.mark("[TOOL_CALLS]")

    def choose(first: str) -> CallReader:
        if first in "{[":
            return _json(context, start).make()
        return _headed(context, HeaderSyntax(start, mistral_header)).make()

    return {start: Start(lambda: SniffReader(choose))}


def _gemma(context: CallContext) -> Starts:
    mark = context.mark
    syntax = GemmaSyntax(mark("<|tool_call>"), mark("<tool_call|>"), mark('<|"|>'))
    return {syntax.start: Start(lambda: GemmaCallsReader(context.emitter, syntax))}


def _function_gemma(context: CallContext) -> Starts:
    mark = context.mark
    start, end = mark("<start_function_call>"), mark("<end_function_call>")
    syntax = GemmaSyntax(start, end, mark("<escape>"))
    return {start: Start(lambda: GemmaCallsReader(context.emitter, syntax))}


def _pythonic(context: CallContext) -> Starts:
    start, end = context.mark("<|tool_call_start|>"), context.mark("<|tool_call_end|>")
    return {start: Start(partial(PythonicReader, context.emitter, start, end))}


def _llama4(context: CallContext) -> Starts:
    start, end = context.mark("<|python_start|>"), context.mark("<|python_end|>")
    return {start: Start(partial(PythonicReader, context.emitter, start, end))}


def _llama3(context: CallContext) -> Starts:
    start = context.mark("<|python_tag|>")
    function = _tagged(context, syntaxes.qwen(context.mark))
    return {start: _json(context, start), "<function=": function}


def bare_json(context: CallContext) -> Starts:
    return {"{": _json(context, "", bare=True)}


def bare_any(context: CallContext) -> Starts:
    return bare_json(context) | {"[": _bare_list(context)}


def _bare_json_list(context: CallContext) -> Starts:
    """xLAM: a list of calls and nothing around it."""
    return bare_json(context) | {"[": _json(context, "", bare=True)}


def _json_between(start: str, *ends: str) -> Callable[[CallContext], Starts]:
    def starts(context: CallContext) -> Starts:
        marked = context.mark(start)
        return {marked: _json(context, marked, *map(context.mark, ends))}

    return starts


def _command_r(context: CallContext) -> Starts:
    starts = [f"Action:{gap}```json" for gap in (" ", "\n", "")]
    return {start: _json(context, start, "```") for start in starts}


HERMES = ToolFamily(
    "hermes", _tool_call_tag, controls=("<tool_call>", "</tool_call>"),
    interrupts=('<tool_call>\n{"name"', '<tool_call>{"name"'),
)  # fmt: skip
FAMILIES = (
    ToolFamily(
        "step3", _step3,
        controls=("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", "<｜tool_call_begin｜>",
                  "<｜tool_call_end｜>", "<｜tool_sep｜>"),
    ),
    ToolFamily(
        "minimax_m3", _minimax_m3, controls=(TAG_MARK, "<tool_call>", "</tool_call>")
    ),
    ToolFamily(
        "solar_open_2", _solar_open_2,
        controls=("<|tool_call:start|>", "<|tool_call:end|>", "<|tool_arg:start|>",
                  "<|tool_arg:value|>", "<|tool_arg:end|>"),
    ),
    ToolFamily(
        "solar_open", _solar_open,
        controls=("<|tool_calls|>", "<|calls|>", "<|tool_call:begin|>", "<|tool_call:end|>",
                  "<|tool_call:name|>", "<|tool_call:args|>"),
    ),
    ToolFamily("apertus", _apertus, controls=("<|tools_prefix|>", "<|tools_suffix|>")),
    ToolFamily("gigachat35", partial(_dsml, name="GCML"), controls=("｜GCML｜",)),
    ToolFamily(
        "gigachat", _gigachat, controls=("<|message_sep|>", "<|role_sep|>", "<|function_call|>")
    ),
    ToolFamily(
        "plamo", _plamo,
        controls=tuple(
            f"<|plamo:{side}_tool_{part}:plamo|>" for side in ("begin", "end")
            for part in ("requests", "request", "name", "arguments")
        ),
    ),
    ToolFamily(
        "internlm", _json_between("<|action_start|><|plugin|>", "<|action_end|>"),
        controls=("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    ),
    ToolFamily(
        "pangu", _json_between("[unused11]", "[unused12]"), controls=("[unused11]", "[unused12]")
    ),
    ToolFamily("olmo", _olmo, controls=("<function_calls>", "</function_calls>")),
    ToolFamily(
        "kimi_k3", _xtml, trims=False,
        controls=("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
    ),
    ToolFamily("gemma4", _gemma, controls=("<|tool_call>", "<tool_call|>", '<|"|>'), trims=False),
    ToolFamily(
        "function_gemma", _function_gemma, trims=False,
        controls=("<start_function_call>", "<end_function_call>", "<escape>"),
    ),
    ToolFamily("minimax", _minimax, controls=("<minimax:tool_call>", "</minimax:tool_call>")),
    ToolFamily("dsml", _dsml, controls=("｜DSML｜",)),
    ToolFamily(
        "deepseek", _deepseek, trims=False,
        controls=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
                  "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
    ),
    ToolFamily("longcat", _longcat, controls=("<longcat_tool_call>", "</longcat_tool_call>")),
    ToolFamily(
        "glm", _tool_call_tag,
        controls=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
                  "</arg_value>"),
    ),
    ToolFamily("pythonic", _pythonic, controls=("<|tool_call_start|>", "<|tool_call_end|>")),
    ToolFamily("seed", _seed, controls=("<seed:tool_call>", "</seed:tool_call>")),
    ToolFamily(
        "qwen", _qwen, controls=("<tool_call>", "</tool_call>"),
        interrupts=("<tool_call>\n<function=", "<tool_call><function="),
    ),
    ToolFamily(
        "kimi_k2", _kimi, trims=False, counted_ids=True,
        interrupts=("<|tool_calls_section_begin|>",),
        controls=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
                  "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"),
    ),
    ToolFamily("minicpm", _minicpm, controls=("<function", "</function>")),
    ToolFamily(
        "mistral", _mistral, trims=False, short_ids=True,
        controls=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    ),
    ToolFamily("muse", _muse, controls=("<atem:function_calls>", "</atem:function_calls>")),
    ToolFamily(
        "llama4", _llama4, bare=bare_any, trims=False,
        controls=("<|python_start|>", "<|python_end|>"),
    ),
    ToolFamily("llama3", _llama3, bare=bare_json, trims=False, controls=("<|python_tag|>",)),
    ToolFamily("nemotron", _json_between("<TOOLCALL>", "</TOOLCALL>"), controls=("<TOOLCALL>",)),
    ToolFamily(
        "tool_calls", _json_between("<tool_calls>", "</tool_calls>"),
        controls=("<tool_calls>", "</tool_calls>"),
    ),
    ToolFamily(
        "cohere", _json_between("<|START_ACTION|>", "<|END_ACTION|>"),
        controls=("<|START_ACTION|>", "<|END_ACTION|>"), interrupts=("<|START_ACTION|>",),
    ),
    ToolFamily(
        "granite", _json_between("<|tool_call|>", "<|/tool_call|>"),
        controls=("<|tool_call|>", "<|/tool_call|>"),
    ),
    ToolFamily("command_r", _command_r),
    ToolFamily("functools", _json_between("functools")),
    ToolFamily("function_call", _json_between("<function_call>", "</function_call>")),
    ToolFamily("xlam", _tool_call_tag, bare=_bare_json_list),
    HERMES,
)  # fmt: skip
BY_NAME = {family.name: family for family in FAMILIES}

# The names of mlx-lm's parsers, as converted models carry them in tokenizer_config.json.
MLX_LM_NAMES = {
    "function_gemma": "function_gemma", "gemma4": "gemma4", "glm47": "glm", "json_tools": "hermes",
    "kimi_k2": "kimi_k2", "kimi_k3": "kimi_k3", "laguna": "glm", "longcat": "longcat",
    "minicpm5": "minicpm", "minimax_m2": "minimax", "mistral": "mistral", "muse_spark": "muse",
    "pythonic": "pythonic", "qwen3_coder": "qwen",
}  # fmt: skip

# What a chat template or a vocabulary says about the family, most telling first.
SIGNS: tuple[tuple[str, str], ...] = (
    ("step3", r"steptml:|<｜tool_calls_begin｜>"),
    ("xlam", r"make calls in a single JSON array"),
    ("minimax_m3", r"\]<\]minimax\[>\["),
    ("solar_open_2", r"<\|tool_arg:start\|>"),
    ("solar_open", r"<\|tool_call:begin\|>"),
    ("apertus", r"<\|tools_prefix\|>"),
    ("gigachat35", r"｜GCML｜"),
    ("gigachat", r"'function call'|<\|function_call\|>"),
    ("plamo", r"<\|plamo:begin_tool_requests"),
    ("internlm", r"<\|action_start\|>"),
    ("pangu", r"\[unused11\]"),
    ("olmo", r"<function_calls>"),
    ("kimi_k3", r"<\|end_of_msg\|>"),
    ("gemma4", r"<\|tool_call>"),
    ("function_gemma", r"<start_function_call>"),
    ("minimax", r"<minimax:tool_call>"),
    ("dsml", r"｜DSML｜"),
    ("deepseek", r"<｜tool▁calls▁begin｜>"),
    ("longcat", r"<longcat_tool_call>"),
    ("glm", r"<arg_key>"),
    ("pythonic", r"<\|tool_(?:call|list)_start\|>"),
    ("seed", r"seed:tool_call"),
    ("qwen", r"<function="),
    ("kimi_k2", r"<\|tool_calls_section_begin\|>"),
    ("minicpm", r"<function name="),
    ("mistral", r"\[TOOL_CALLS\]"),
    ("muse", r"<atem:function_calls>"),
    ("llama4", r"<\|python_start\|>"),
    ("nemotron", r"<TOOLCALL>"),
    ("tool_calls", r"<tool_calls>"),
    ("cohere", r"<\|START_ACTION\|>"),
    ("command_r", r"Action:(?:\\n|\s)*```json"),
    ("hermes", r"<tool_call>"),
    ("granite", r"<\|tool_call\|>"),
    ("functools", r"functools\["),
    ("function_call", r"<function_call>"),
    ("llama3", r"<\|python_tag\|>|ipython"),
)


def choose_family(
    template: str, vocabulary: Collection[str], mlx_lm_name: str | None = None
) -> ToolFamily:
    """The family by what the model's maker declared, its template, its tokens; else Hermes."""
    if mlx_lm_name in MLX_LM_NAMES:
        return BY_NAME[MLX_LM_NAMES[mlx_lm_name]]
    if mlx_lm_name:
        return _mlx_lm_family(mlx_lm_name)
    if (suffix := _hunyuan_suffix(template, vocabulary)) is not None:
        return _hunyuan_family(suffix)
    for name, sign in SIGNS:
        if re.search(sign, template):
            return BY_NAME[name]
    for family in FAMILIES:
        # Tokens of Hermes say nothing: models of three families have them.
        telling = set(family.controls) - set(HERMES.controls)
        if telling and telling <= set(vocabulary):
            return family
    return HERMES


# Hy's templates put the suffix of their tags together from a variable.
HUNYUAN_SUFFIX = re.compile(r"set HYTK = '([^']*)'|<tool_calls(:[\w-]+)>")


def _hunyuan_suffix(template: str, vocabulary: Collection[str]) -> str | None:
    match = HUNYUAN_SUFFIX.search(template)
    if match is not None:
        return match[1] if match[1] is not None else match[2]
    if "<tool_calls" not in template:
        return None
    tokens = (HUNYUAN_SUFFIX.fullmatch(token) for token in vocabulary)
    return next((token[2] for token in tokens if token), None)


def _hunyuan_family(suffix: str) -> ToolFamily:
    tags = ("tool_calls", "tool_call", "arg_key", "arg_value")
    controls = [f"<{side}{tag}{suffix}>" for tag in tags for side in ("", "/")]
    return ToolFamily(
        "hunyuan", _hunyuan(suffix), controls=(*controls, f"<tool_sep{suffix}>"), suffix=suffix
    )


def _mlx_lm_family(name: str) -> ToolFamily:
    """A parser that mlx-lm has gained since."""
    module = importlib.import_module(f"mlx_lm.tool_parsers.{name}")
    start, end = module.tool_call_start, module.tool_call_end

    def starts(context: CallContext) -> Starts:
        return {context.mark(start): _borrowed(context, name, start, context.mark(end))}

    return ToolFamily(name, starts, controls=tuple(t for t in (start, end) if t))
