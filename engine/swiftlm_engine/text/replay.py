"""Replay: calls go back into the prompt as the model wrote them.

A template spells a call its own way: other white space, other order of keys. Where the spelling
differs from what the model once wrote, the prefix cache ends. So the raw text is remembered by
the id of the call, and put in place of the rendering when that reads as the same calls. So are
the thoughts before it, which most clients cannot send back.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock

from swiftlm_engine.text.chat import Message, ToolCall
from swiftlm_engine.text.reasoning import TAGS

MAX_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class RawCalls:
    """One block of calls as the model wrote it, from its first marker to its last.

    `lead` is the white space that parted it from the content before; None without content.
    `reasoning` is what the model thought before it called.
    """

    ids: tuple[str, ...]
    text: str
    lead: str | None = None
    reasoning: str = ""

    @property
    def size(self) -> int:
        return len(self.text) + len(self.reasoning) + sum(map(len, self.ids))


class RawCallMemory:
    """The most recently used blocks, bounded in bytes; may be shared by threads."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = Lock()  # guards the three fields around it
        self._blocks: OrderedDict[str, RawCalls] = OrderedDict()  # by the first id

    def remember(self, blocks: Iterable[RawCalls]) -> None:
        with self._lock:
            for block in blocks:
                self._forget(block.ids[0])
                self._blocks[block.ids[0]] = block
                self._bytes += block.size
            while self._bytes > self._max_bytes and self._blocks:
                self._forget(next(iter(self._blocks)))

    def recall(self, first_id: str) -> RawCalls | None:
        with self._lock:
            block = self._blocks.get(first_id)
            if block is not None:
                self._blocks.move_to_end(first_id)
            return block

    def _forget(self, first_id: str) -> None:
        block = self._blocks.pop(first_id, None)
        self._bytes -= block.size if block else 0


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


def with_thoughts(messages: Sequence[Message], memory: RawCallMemory) -> tuple[Message, ...]:
    """The messages with the thoughts before each call, where a client has no place for them.

    Templates show thoughts while a tool loop lasts, and models rely on them; without them the
    prefix cache ends where they stood.
    """
    return tuple(map(partial(_with_thoughts, memory), messages))


def _with_thoughts(memory: RawCallMemory, message: Message) -> Message:
    if message.reasoning is not None or not message.tool_calls:
        return message
    raw = memory.recall(message.tool_calls[0].id)
    if raw is None or not raw.reasoning or any(tags.closer in message.text for tags in TAGS):
        return message
    return replace(message, reasoning=raw.reasoning)


# Finds the next block of calls at or after a position of a rendered prompt.
FindBlock = Callable[[str, int], ReplayBlock | None]


def splices(
    text: str, calls: Sequence[ToolCall], memory: RawCallMemory, find: FindBlock
) -> list[Splice]:
    """What to replace in a rendered prompt, in order; only where the spelling differs."""
    if not any(memory.recall(call.id) for call in calls):
        return []
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
        raw = memory.recall(ids[0])
        if raw is not None and raw.ids == ids and _reads_as(raw, block, find):
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
