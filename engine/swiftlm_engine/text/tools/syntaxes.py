"""The tags of each family that writes its calls as tags."""

# ruff: noqa: RUF001, RUF002 - the tokens of Step3 are spelled with wide bars

import re
from collections.abc import Callable

from swiftlm_engine.text.tools.tagged_calls import TagSyntax
from swiftlm_engine.text.tools.tagged_value import ValueStyle

Mark = Callable[[str], str]  # control tokens of a text marked as this vocabulary has them


def qwen(mark: Mark, section: str = "tool_call") -> TagSyntax:
    """`<function=f><parameter=k>\\nv\\n</parameter></function>`: Qwen3-Coder and later, Seed."""
    return TagSyntax(
        call=re.compile(r"<function=\s*\"?(?P<name>[^>\"\n]+?)\"?\s*>"),
        call_start="<function=",
        call_close="</function>",
        param=re.compile(r"<parameter=\s*\"?(?P<key>[^>\"\n]+?)\"?\s*>"),
        param_start="<parameter=",
        param_close="</parameter>",
        section_start=mark(f"<{section}>"),
        section_end=mark(f"</{section}>"),
        style=ValueStyle.WRAPPED,
    )


def glm(mark: Mark, prefix: str = "") -> TagSyntax:
    """`f<arg_key>k</arg_key><arg_value>v</arg_value>`: GLM since 4.5, Laguna; LongCat prefixed."""
    key, end_key = mark(f"<{prefix}arg_key>"), mark(f"</{prefix}arg_key>")
    value, end_value = mark(f"<{prefix}arg_value>"), mark(f"</{prefix}arg_value>")
    end = mark(f"</{prefix}tool_call>")
    return TagSyntax(
        call=re.compile(rf"(?P<name>[\w.:/-]+)(?:\\n|\s)*(?={re.escape(key)}|{re.escape(end)})"),
        call_close=end,
        param=re.compile(
            rf"{re.escape(key)}(?P<key>.*?){re.escape(end_key)}(?:\\n|\s)*{re.escape(value)}",
            re.DOTALL,
        ),
        param_start=key,
        param_close=end_value,
        section_start=mark(f"<{prefix}tool_call>"),
        section_end=end,
        style=ValueStyle.LITERAL,
    )


def hunyuan(mark: Mark, suffix: str) -> TagSyntax:
    """Tencent's Hy: GLM's tags in a section, each with the suffix of the checkpoint."""

    def tag(name: str) -> str:
        return mark(f"<{name}{suffix}>")

    call, end = tag("tool_call"), tag("/tool_call")
    ends = "|".join(map(re.escape, (tag("arg_key"), end)))
    return TagSyntax(
        call=re.compile(
            rf"{re.escape(call)}\s*(?P<name>[\w.:/-]+?)\s*(?:{re.escape(tag('tool_sep'))}|(?={ends}))"
        ),
        call_start=call,
        call_close=end,
        param=re.compile(
            rf"{re.escape(tag('arg_key'))}(?P<key>.*?){re.escape(tag('/arg_key'))}\s*"
            rf"{re.escape(tag('arg_value'))}",
            re.DOTALL,
        ),
        param_start=tag("arg_key"),
        param_close=tag("/arg_value"),
        section_start=tag("tool_calls"),
        section_end=tag("/tool_calls"),
        style=ValueStyle.LITERAL,
    )


def solar(mark: Mark) -> TagSyntax:
    """Solar Open 2: the name behind the opening token, an argument between three others."""
    start, end = mark("<|tool_call:start|>"), mark("<|tool_call:end|>")
    key, value = mark("<|tool_arg:start|>"), mark("<|tool_arg:value|>")
    ends = "|".join(map(re.escape, (key, end)))
    return TagSyntax(
        call=re.compile(rf"{re.escape(start)}\s*(?P<name>[\w.:/-]+)\s*(?={ends})"),
        call_start=start,
        call_close=end,
        param=re.compile(rf"{re.escape(key)}(?P<key>.*?){re.escape(value)}", re.DOTALL),
        param_start=key,
        param_close=mark("<|tool_arg:end|>"),
        tag_end="|>",
    )


def invoke(
    section_start: str, section_end: str, prefix: str = "", style: ValueStyle = ValueStyle.RAW
) -> TagSyntax:
    """`<invoke name="f"><parameter name="k">v</parameter></invoke>`: MiniMax, DSML, Muse."""
    opener = re.escape(f"<{prefix}")
    name = r"""\s*=\s*["']?(?P<{}>[^"'>]+)["']?"""
    kind = r"""(?:\s+string\s*=\s*"(?P<kind>true|false)")?[^>/]*"""
    return TagSyntax(
        call=re.compile(rf"{opener}invoke\s+name{name.format('name')}[^>/]*(?P<closed>/)?>"),
        call_start=f"<{prefix}invoke",
        call_close=f"</{prefix}invoke>",
        param=re.compile(rf"{opener}parameter\s+name{name.format('key')}{kind}>"),
        param_start=f"<{prefix}parameter",
        param_close=f"</{prefix}parameter>",
        section_start=section_start,
        section_end=section_end,
        style=style,
    )


def step3(mark: Mark) -> TagSyntax:
    """`function<｜tool_sep｜><steptml:invoke name="f">...` between tokens of its own: Step3."""
    begin, sep = mark("<｜tool_call_begin｜>"), mark("<｜tool_sep｜>")
    return TagSyntax(
        call=re.compile(
            rf"(?:{re.escape(sep)}\s*)?{re.escape(begin)}(?:\s*function\s*{re.escape(sep)})?\s*"
            r'<steptml:invoke\s+name="(?P<name>[^">]+)">'
        ),
        call_start=begin,
        call_close="</steptml:invoke>" + mark("<｜tool_call_end｜>"),
        param=re.compile(r'<steptml:parameter\s+name="(?P<key>[^">]+)">'),
        param_start="<steptml:parameter",
        param_close="</steptml:parameter>",
        section_start=mark("<｜tool_calls_begin｜>"),
        section_end=mark("<｜tool_calls_end｜>"),
        tag_end='">',
    )


def minicpm(mark: Mark) -> TagSyntax:
    """`<function name="f"><param name="k">v</param></function>`, with CDATA: MiniCPM5."""
    return TagSyntax(
        call=re.compile(r"<function\s+name\s*=\s*[\"']?(?P<name>[^\"'>]+)[\"']?\s*(?P<closed>/)?>"),
        call_start="<function name",
        call_close=mark("</function>"),
        param=re.compile(r"<param\s+name\s*=\s*[\"']?(?P<key>[^\"'>]+)[\"']?\s*>"),
        param_start="<param",
        param_close="</param>",
        style=ValueStyle.CDATA,
    )


def xtml(mark: Mark) -> TagSyntax:
    """Kimi K3: elements between control tokens, a type on each argument."""
    opened, sep = re.escape(mark("<|open|>")), re.escape(mark("<|sep|>"))
    attributes = rf"(?:(?!{sep}).)*?"
    return TagSyntax(
        call=re.compile(rf'{opened}call{attributes}\btool="(?P<name>[^"]*)"{attributes}{sep}'),
        call_start=mark("<|open|>") + "call",
        call_close=mark("<|close|>call<|sep|>"),
        param=re.compile(
            rf'{opened}argument{attributes}\bkey="(?P<key>[^"]*)"'
            rf'(?:{attributes}\btype="(?P<kind>[^"]*)")?{attributes}{sep}'
        ),
        param_start=mark("<|open|>") + "argument",
        param_close=mark("<|close|>argument<|sep|>"),
        section_start=mark("<|open|>tools<|sep|>"),
        section_end=mark("<|close|>tools<|sep|>"),
        tag_end=mark("<|sep|>"),
        json_open=re.compile(rf"{opened}json{attributes}{sep}"),
        escaped=True,
    )
