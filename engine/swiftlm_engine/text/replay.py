"""Replay: calls go back into the prompt as the model wrote them.

A template spells a call its own way: other white space, other order of keys. Where the spelling
differs from what the model once wrote, the prefix cache ends. So the raw text is remembered by
the id of the call, and put in place of the rendering when that reads as the same calls. So are
the thoughts before it, which most clients cannot send back.

The ids are random and ours, never what a model wrote: models count their calls, and the same id
comes up in every conversation. Requests with different cache salts share no memory either.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock

from swiftlm_engine.text.chat import Message, ToolCall
from swiftlm_engine.text.reasoning import TAGS

MAX_BYTES = 16 * 2**20
COUNTED_ID = re.compile(r"(?:functions\.)?[\w.:/-]+:\d+")


@dataclass(frozen=True, slots=True)
class RawCalls:
    """One block of calls as the model wrote it, from its first marker to its last.

    `lead` is the white space that parted it from the content before; None without content.
    `reasoning` is what the model thought before it called. `written_ids` are the ids that the
    model gave its calls, where it gives any. `whole` is False where the text was cut short and
    not ended by the model: then only thoughts and ids are of use.
    """

    ids: tuple[str, ...]
    text: str
    lead: str | None = None
    reasoning: str = ""
    written_ids: tuple[str | None, ...] = ()
    whole: bool = True

    @property
    def size(self) -> int:
        return len(self.text) + len(self.reasoning) + sum(map(len, self.ids))


class RawCallMemory:
    """The most recently used blocks, bounded in bytes; may be shared by threads.

    A block is found only in the scope (the cache salt of its request) it was remembered in.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = Lock()  # guards the three fields around it
        self._blocks: OrderedDict[_Key, RawCalls] = OrderedDict()

    def remember(self, blocks: Iterable[RawCalls], scope: str = "") -> None:
        with self._lock:
            for block in blocks:
                key = scope, block.ids[0]
                self._forget(key)
                self._blocks[key] = block
                self._bytes += block.size
            while self._bytes > self._max_bytes and self._blocks:
                self._forget(next(iter(self._blocks)))

    def recall(self, first_id: str, scope: str = "") -> RawCalls | None:
        key = scope, first_id
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._blocks.move_to_end(key)
            return block

    def _forget(self, key: "_Key") -> None:
        block = self._blocks.pop(key, None)
        self._bytes -= block.size if block else 0


_Key = tuple[str, str]  # the scope and the first id of a block


@dataclass(frozen=True, slots=True)
class Recollection:
    """What one request may recall, and how the calls of a text are found."""

    memory: RawCallMemory
    scope: str
    find: "FindBlock"

    def of(self, calls: Sequence[ToolCall]) -> RawCalls | None:
        """The block that begins with the first of these calls, if the client left it as it was."""
        raw = self.memory.recall(calls[0].id, self.scope) if calls else None
        if raw is None or raw.ids != tuple(call.id for call in calls[: len(raw.ids)]):
            return None
        written = self.find(raw.text, 0)
        if written is None or not written.calls:
            return raw
        sent = [_loaded((call.name, call.arguments)) for call in calls[: len(raw.ids)]]
        return raw if [_loaded(call) for call in written.calls] == sent else None


@dataclass(frozen=True, slots=True)
class ReplayBlock:
    """Calls found in a rendered prompt: where, and their names and JSON arguments."""

    start: int
    end: int
    calls: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Splice:
    start: int
    end: int
    text: str


def with_thoughts(messages: Sequence[Message], past: Recollection) -> tuple[Message, ...]:
    """The messages with the thoughts before each call, where a client has no place for them.

    Templates show thoughts while a tool loop lasts, and models rely on them; without them the
    prefix cache ends where they stood.
    """
    return tuple(map(partial(_with_thoughts, past), messages))


def _with_thoughts(past: Recollection, message: Message) -> Message:
    if message.reasoning is not None or not message.tool_calls:
        return message
    raw = past.of(message.tool_calls)
    if raw is None or not raw.reasoning or any(tags.closer in message.text for tags in TAGS):
        return message
    return replace(message, reasoning=raw.reasoning)


# Finds the next block of calls at or after a position of a rendered prompt.
FindBlock = Callable[[str, int], ReplayBlock | None]


def with_written_ids(
    messages: Sequence[Message], past: Recollection, counts: bool
) -> tuple[Message, ...]:
    """The messages with the ids that the model wrote: results name the call they answer.

    Where a family `counts` its calls, so are those that nothing is remembered of.
    """
    ids: dict[str, str] = {}
    count = 0
    for message in messages:
        for at, call in enumerate(message.tool_calls):
            raw = past.of(message.tool_calls[at:])
            for known, written in zip(raw.ids, raw.written_ids, strict=False) if raw else ():
                ids.setdefault(known, written or known)
            ids.setdefault(call.id, _counted_id(call, count) if counts else call.id)
            count += 1
    return tuple(_with_ids(message, ids) for message in messages)


def _counted_id(call: ToolCall, count: int) -> str:
    return call.id if COUNTED_ID.fullmatch(call.id) else f"functions.{call.name}:{count}"


def _with_ids(message: Message, ids: Mapping[str, str]) -> Message:
    answers = message.tool_call_id
    if not message.tool_calls and answers not in ids:
        return message
    calls = tuple(replace(call, id=ids[call.id]) for call in message.tool_calls)
    return replace(message, tool_calls=calls, tool_call_id=answers and ids.get(answers, answers))


def splices(text: str, calls: Sequence[ToolCall], past: Recollection) -> list[Splice]:
    """What to replace in a rendered prompt, in order; only where the spelling differs."""
    if not any(past.memory.recall(call.id, past.scope) for call in calls):
        return []
    find = past.find
    found: list[Splice] = []
    waiting = list(calls)
    position = 0
    while waiting and (block := find(text, position)) is not None:
        position = max(block.end, position + 1)
        at = _match(waiting, block)
        if at is None:
            continue
        ids = tuple(call.id for call in waiting[at : at + len(block.calls)])
        waiting = waiting[at + len(block.calls) :]
        raw = past.memory.recall(ids[0], past.scope)
        if raw is not None and raw.whole and raw.ids == ids and _reads_as(raw, block, find):
            found += _splice(text, block, raw)
    return found


def apply(text: str, changes: Sequence[Splice]) -> str:
    pieces, position = [], 0
    for change in changes:
        pieces += [text[position : change.start], change.text]
        position = change.end
    return "".join([*pieces, text[position:]])


def moved(position: int, changes: Sequence[Splice]) -> int | None:
    """Where a position of the rendered prompt is after the changes; None inside one."""
    shift = 0
    for change in changes:
        if position <= change.start:
            break
        if position < change.end:
            return None
        shift += len(change.text) - (change.end - change.start)
    return position + shift


def _splice(text: str, block: ReplayBlock, raw: RawCalls) -> list[Splice]:
    start, new = block.start, raw.text
    if raw.lead is not None:
        start = len(text[:start].rstrip())
        new = raw.lead + new
    return [Splice(start, block.end, new)] if text[start : block.end] != new else []


def _reads_as(raw: RawCalls, block: ReplayBlock, find: FindBlock) -> bool:
    """The client may have changed a call and kept its id."""
    written = find(raw.text, 0)
    return written is not None and [_loaded(c) for c in written.calls] == [
        _loaded(c) for c in block.calls
    ]


def _loaded(call: tuple[str, str]) -> tuple[str, object]:
    try:
        return call[0], json.loads(call[1] or "{}")
    except (ValueError, RecursionError):
        return call


def _match(waiting: Sequence[ToolCall], block: ReplayBlock) -> int | None:
    """Which of the calls that are still to come the block spells."""
    length = len(block.calls)
    for at in range(len(waiting) - length + 1):
        pairs = zip(waiting[at : at + length], block.calls, strict=True)
        if length and all(_same(call, name, arguments) for call, (name, arguments) in pairs):
            return at
    return None


def _same(call: ToolCall, name: str, arguments: str) -> bool:
    return _loaded((call.name, call.arguments)) == _loaded((name, arguments))
