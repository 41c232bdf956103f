"""Plain tools: tools for templates that know none, told to the model in words.

The definitions go into the system message, calls and results into the turns around them, in the
form that most models have seen: JSON between `<tool_call>` tags. Templates that know all but the
calls (LFM2's) get those in their model's own form.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from swiftlm_engine.text.chat import Message, TextPart, ToolCall, ToolSpec
from swiftlm_engine.text.turns import Turns, is_system, merge_neighbours

PYTHON_CALL_START, _PYTHON_CALL_END = "<|tool_call_start|>", "<|tool_call_end|>"
INTRODUCTION = """You can call these functions, one JSON object per line:
<tools>
{tools}
</tools>
To call a function, write its name and its arguments as JSON between these tags, and nothing else:
<tool_call>
{{"name": "function name", "arguments": {{"argument": "value"}}}}
</tool_call>
To call several, repeat that. Each result comes back between <tool_response> tags."""


def explain_tools(turns: Turns, tools: Sequence[ToolSpec]) -> Turns:
    """The turns with the tools explained at their head."""
    lines = "\n".join(
        json.dumps(
            {"name": t.name, "description": t.description, "parameters": t.parameters or {}},
            ensure_ascii=False,
        )
        for t in tools
    )
    text = INTRODUCTION.format(tools=lines)
    if turns and is_system(turns[0]):
        head = replace(turns[0], parts=(*turns[0].parts, TextPart(""), TextPart(text)))
        return (head, *turns[1:])
    return (Message("system", (TextPart(text),)), *turns)


def spell_calls(turns: Turns) -> Turns:
    """Calls as the text of the assistant, results as the text of a user."""
    return merge_neighbours(tuple(map(_spelled, turns)))


def spell_python_calls(turns: Turns) -> Turns:
    """Calls as LFM2 writes them; results are left to the template."""
    return spell_own_calls(_python_calls, turns)


def spell_own_calls(spell: Callable[[Sequence[ToolCall]], str], turns: Turns) -> Turns:
    """Calls in the form of the model; results are left to the template."""
    return tuple(
        _with_calls(turn, (spell(turn.tool_calls),)) if turn.tool_calls else turn for turn in turns
    )


def _spelled(turn: Message) -> Message:
    if turn.role == "tool":
        text = f"<tool_response>\n{turn.text}\n</tool_response>"
        return Message("user", (TextPart(text),))
    if turn.tool_calls:
        return _with_calls(turn, tuple(map(_call_text, turn.tool_calls)))
    return turn


def _with_calls(turn: Message, texts: tuple[str, ...]) -> Message:
    said = turn.parts if turn.text else ()
    return replace(turn, parts=(*said, *map(TextPart, texts)), tool_calls=())


def _call_text(call: ToolCall) -> str:
    name = json.dumps(call.name, ensure_ascii=False)
    arguments = call.arguments.strip() or "{}"
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


def _python_calls(calls: Sequence[ToolCall]) -> str:
    return f"{PYTHON_CALL_START}[{', '.join(map(_python_call, calls))}]{_PYTHON_CALL_END}"


def _python_call(call: ToolCall) -> str:
    try:
        arguments = json.loads(call.arguments.strip() or "{}")
        words = ", ".join(f"{name}={_literal(value)}" for name, value in arguments.items())
    except (ValueError, AttributeError):  # a client sent what is no object
        words = call.arguments
    return f"{call.name}({words})"


def _literal(value: object) -> str:
    """As Python writes it, with JSON's quotes."""
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False)
        case list():
            return f"[{', '.join(map(_literal, value))}]"
        case dict():
            pairs = (f"{_literal(key)}: {_literal(item)}" for key, item in value.items())
            return f"{{{', '.join(pairs)}}}"
        case _:
            return repr(value)
