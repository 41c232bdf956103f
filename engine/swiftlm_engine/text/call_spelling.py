"""Old calls as the text that a model of some family writes, where its template writes none."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swiftlm_engine.text.chat import ToolCall


@dataclass(frozen=True, slots=True)
class _Spelling:
    """NAME (with quotes), ARGUMENTS and, in place of the name, ID stand for those of a call."""

    call: str
    before: str = ""
    between: str = ""
    after: str = ""


_LIST = '{"name": NAME, "arguments": ARGUMENTS}'
_SPELLINGS = {
    "granite": _Spelling(_LIST, "<|tool_call|>[", ", ", "]"),
    "nemotron": _Spelling(_LIST, "<TOOLCALL>[", ", ", "]</TOOLCALL>"),
    "pangu": _Spelling(_LIST, "[unused11][", ", ", "][unused12]"),
    "functools": _Spelling(_LIST, "functools[", ", ", "]"),
    "xlam": _Spelling(_LIST, "[", ", ", "]"),
    "function_call": _Spelling(f"<function_call> {_LIST}", between="\n"),
    "mistral": _Spelling(_LIST, "[TOOL_CALLS] [", ", ", "]"),
    "tool_calls": _Spelling(_LIST, "<tool_calls>\n", "\n", "\n</tool_calls>"),
    "llama3": _Spelling('{"name": NAME, "parameters": ARGUMENTS}', between="; "),
    "cohere": _Spelling(
        '{"tool_name": NAME, "parameters": ARGUMENTS}', "<|START_ACTION|>[", ", ", "]<|END_ACTION|>"
    ),
    "command_r": _Spelling(
        '{"tool_name": NAME, "parameters": ARGUMENTS}', "Action: ```json\n[\n", ",\n", "\n]\n```"
    ),
    "apertus": _Spelling("{NAME: ARGUMENTS}", "<|tools_prefix|>[", ", ", "]<|tools_suffix|>"),
    "internlm": _Spelling(
        '<|action_start|><|plugin|>\n{"name": NAME, "parameters": ARGUMENTS}<|action_end|>'
    ),
    "kimi_k2": _Spelling(
        "<|tool_call_begin|>ID<|tool_call_argument_begin|>ARGUMENTS<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        after="<|tool_calls_section_end|>",
    ),
}


def spelling_of(family: str) -> Callable[[Sequence[ToolCall]], str] | None:
    spelling = _SPELLINGS.get(family)
    if spelling is None:
        return None

    def spell(calls: Sequence[ToolCall]) -> str:
        written = [_spelled(spelling.call, call, at) for at, call in enumerate(calls)]
        return f"{spelling.before}{spelling.between.join(written)}{spelling.after}"

    return spell


def _spelled(form: str, call: ToolCall, at: int) -> str:
    head, _, rest = form.partition("ARGUMENTS")
    name = json.dumps(call.name, ensure_ascii=False)
    counted = call.id if call.id.startswith("functions.") else f"functions.{call.name}:{at}"
    # The first of its kind: a name may look like another.
    head = head.replace("NAME", name, 1) if "NAME" in head else head.replace("ID", counted, 1)
    return f"{head}{call.arguments.strip() or '{}'}{rest}"
