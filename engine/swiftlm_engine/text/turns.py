"""Turns: what a chat template may refuse about the order of roles, and how to say it otherwise.

Clients send two user turns in a row, a system message in the middle, a question after a tool
result that nobody answered. Each step below repairs one such thing and keeps every word. The
steps are tried in order, each on the result of the one before, until the template renders.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from swiftlm_engine.text.messages import Message, TextPart

Turns = tuple[Message, ...]


def merge_neighbours(turns: Turns) -> Turns:
    """Consecutive turns of one role become one; tool results stay apart, each answers its call."""
    merged: list[Message] = []
    for turn in turns:
        if merged and merged[-1].role == turn.role and turn.role != "tool":
            merged[-1] = _joined(merged[-1], turn)
        else:
            merged.append(turn)
    return tuple(merged)


def system_only_first(turns: Turns) -> Turns:
    """A system message after the first turn is said by the user, where it stands."""
    later = [replace(t, role="user") if _is_system(t) and i else t for i, t in enumerate(turns)]
    return merge_neighbours(tuple(later))


def answer_tools(turns: Turns) -> Turns:
    """An empty assistant turn between a tool's result (or a call nobody answered) and a user."""
    bridged: list[Message] = []
    for turn in turns:
        before = bridged[-1] if bridged else None
        if (
            turn.role == "user"
            and before is not None
            and (before.role == "tool" or before.tool_calls)
        ):
            bridged.append(Message("assistant", (TextPart(""),)))
        bridged.append(turn)
    return tuple(bridged)


def system_into_user(turns: Turns) -> Turns:
    """For templates without a system role: the first user turn begins with it."""
    if not turns or not _is_system(turns[0]):
        return turns
    return merge_neighbours((replace(turns[0], role="user"), *turns[1:]))


def user_first(turns: Turns) -> Turns:
    """For templates that want a question before the first answer."""
    head = 1 if turns and _is_system(turns[0]) else 0
    if head < len(turns) and turns[head].role == "user":
        return turns
    return (*turns[:head], Message("user", (TextPart(""),)), *turns[head:])


STEPS: tuple[Callable[[Turns], Turns], ...] = (
    merge_neighbours,
    system_only_first,
    answer_tools,
    user_first,
    system_into_user,
)


def variants(turns: Turns) -> Iterator[Turns]:
    """The turns as given, then ever more repaired; each variant once."""
    yield turns
    for step in STEPS:
        changed = step(turns)
        if changed != turns:
            turns = changed
            yield turns


def _is_system(turn: Message) -> bool:
    return turn.role in ("system", "developer")


def _joined(first: Message, second: Message) -> Message:
    gap = (TextPart(""),) if first.text and second.text else ()  # a blank line between the two
    return replace(
        first,
        parts=first.parts + gap + second.parts,
        reasoning="\n\n".join(r for r in (first.reasoning, second.reasoning) if r) or None,
        tool_calls=first.tool_calls + second.tool_calls,
    )
