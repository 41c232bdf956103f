"""Plain tools: tools for templates that know none, told to the model in words.

The definitions go into the system message, calls and results into the turns around them, in the
form that most models have seen: JSON between `<tool_call>` tags.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

from swiftlm_engine.text.messages import Message, TextPart, ToolCall, ToolSpec
from swiftlm_engine.text.turns import Turns, is_system, merge_neighbours

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


def _spelled(turn: Message) -> Message:
    if turn.role == "tool":
        text = f"<tool_response>\n{turn.text}\n</tool_response>"
        return Message("user", (TextPart(text),))
    if turn.tool_calls:
        calls = tuple(TextPart(_call_text(call)) for call in turn.tool_calls)
        said = turn.parts if turn.text else ()
        return replace(turn, parts=(*said, *calls), tool_calls=())
    return turn


def _call_text(call: ToolCall) -> str:
    name = json.dumps(call.name, ensure_ascii=False)
    arguments = call.arguments.strip() or "{}"
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'
