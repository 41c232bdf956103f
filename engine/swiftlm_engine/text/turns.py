"""Turns: what a chat template may refuse about a conversation, and how to say it otherwise.

Clients send two user turns in a row, a system message in the middle, a question after a tool
result that nobody answered. Each step below repairs one such thing and keeps every word. The
steps are tried in order, each on the result of the one before, until the template renders.
"""

import hashlib
import json
import re
import string
from collections.abc import Callable, Iterator
from dataclasses import replace

from swiftlm_engine.text.chat import Message, TextPart, ToolCall

Turns = tuple[Message, ...]
ID_LETTERS = string.ascii_letters + string.digits


def merge_neighbours(turns: Turns) -> Turns:
    """Consecutive turns of one role become one; tool results stay apart, each answers its call."""
    merged: list[Message] = []
    for turn in turns:
        if merged and merged[-1].role == turn.role and turn.role != "tool":
            merged[-1] = _joined(merged[-1], turn)
        else:
            merged.append(turn)
    return tuple(merged)


def short_ids(turns: Turns) -> Turns:
    """For Mistral's templates: every call id becomes nine letters and digits."""

    def shortened(turn: Message) -> Message:
        calls = tuple(replace(call, id=_short_id(call.id)) for call in turn.tool_calls)
        answers = turn.tool_call_id
        return replace(turn, tool_calls=calls, tool_call_id=answers and _short_id(answers))

    return tuple(map(shortened, turns))


def system_only_first(turns: Turns) -> Turns:
    """A system message after the first turn is said by the user, where it stands."""
    later = [replace(t, role="user") if is_system(t) and i else t for i, t in enumerate(turns)]
    return merge_neighbours(tuple(later))


def answer_tools(turns: Turns) -> Turns:
    """An empty assistant turn between a tool's result (or a call nobody answered) and a user."""
    bridged: list[Message] = []
    for turn in turns:
        if turn.role == "user" and bridged and _is_open(bridged[-1]):
            bridged.append(Message("assistant", (TextPart(""),)))
        bridged.append(turn)
    return tuple(bridged)


def user_first(turns: Turns) -> Turns:
    """For templates that want a question before the first answer."""
    head = 1 if turns and is_system(turns[0]) else 0
    if head < len(turns) and turns[head].role == "user":
        return turns
    return (*turns[:head], Message("user", (TextPart(""),)), *turns[head:])


def system_into_user(turns: Turns) -> Turns:
    """For templates without a system role: the first user turn begins with it."""
    if not turns or not is_system(turns[0]):
        return turns
    return merge_neighbours((replace(turns[0], role="user"), *turns[1:]))


STEPS: tuple[Callable[[Turns], Turns], ...] = (
    merge_neighbours,
    short_ids,
    system_only_first,
    answer_tools,
    user_first,
    system_into_user,
)


def variants(turns: Turns, last_resort: Callable[[Turns], Turns] | None = None) -> Iterator[Turns]:
    """The turns as given, then ever more repaired; each variant once."""
    yield turns
    for step in (*STEPS, last_resort):
        changed = step(turns) if step is not None else turns
        if changed != turns:
            turns = changed
            yield turns
    if last_resort is not None and (merged := merge_neighbours(turns)) != turns:
        yield merged


def with_tool_names(turns: Turns) -> Turns:
    """A tool's result says which tool it is of; some templates print that."""
    names: dict[str, str] = {}
    named: list[Message] = []
    for turn in turns:
        names |= {call.id: call.name for call in turn.tool_calls}
        if turn.role == "tool" and not turn.name and turn.tool_call_id in names:
            turn = replace(turn, name=names[turn.tool_call_id])
        named.append(turn)
    return tuple(named)


def readable_arguments(turns: Turns) -> Turns:
    """Arguments without `\\uXXXX`: a template that pastes them would show the model those."""

    def readable(call: ToolCall) -> ToolCall:
        if "\\u" not in call.arguments:
            return call
        try:
            text = json.dumps(json.loads(call.arguments), ensure_ascii=False)
            text.encode()  # half a character is no text, and stays escaped
        except (ValueError, RecursionError):
            return call
        return replace(call, arguments=text)

    return tuple(
        replace(turn, tool_calls=tuple(map(readable, turn.tool_calls))) if turn.tool_calls else turn
        for turn in turns
    )


def is_system(turn: Message) -> bool:
    return turn.role in ("system", "developer")


def calls_of(turns: Turns) -> Iterator[ToolCall]:
    for turn in turns:
        yield from turn.tool_calls


def _is_open(turn: Message) -> bool:
    return turn.role == "tool" or bool(turn.tool_calls)


def _joined(first: Message, second: Message) -> Message:
    gap = (TextPart(""),) if first.text and second.text else ()  # a blank line between the two
    return replace(
        first,
        parts=first.parts + gap + second.parts,
        reasoning="\n\n".join(r for r in (first.reasoning, second.reasoning) if r) or None,
        tool_calls=first.tool_calls + second.tool_calls,
    )


def _short_id(call_id: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9]{9}", call_id):
        return call_id
    digest = int.from_bytes(hashlib.blake2b(call_id.encode(), digest_size=9).digest(), "big")
    letters = []
    for _ in range(9):
        digest, letter = divmod(digest, len(ID_LETTERS))
        letters.append(ID_LETTERS[letter])
    return "".join(letters)
