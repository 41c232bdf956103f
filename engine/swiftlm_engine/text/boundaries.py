"""Boundaries: the places in a prompt at which the next prompt is likely to part from it.

A place is found by drawing only the beginning of the conversation and comparing the texts.
Beginnings seen in earlier turns are remembered by length and digest, so that a long conversation
costs a few drawings per request and not one per turn.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from swiftlm_engine.brain.tokens import common_prefix
from swiftlm_engine.text.chat import ImagePart, Message, TextPart
from swiftlm_engine.text.turns import Turns, is_system

MAX_REMEMBERED = 4096
MAX_NEW_TURNS = 8  # beginnings drawn for one prompt; the last turns are the ones that come back
ANSWER_OPENERS = ("<think", "[THINK]", "<|channel>thought", "<|open|>think", "</think>")
ELSE = Message("user", (TextPart("\u2402else\u2403"),))


class Draw(Protocol):
    """Draws turns of one conversation without an answer; None where the template refuses."""

    def __call__(self, turns: Turns, tools: bool = True) -> str | None: ...

    @property
    def goes_on(self) -> bool:
        """The last turn is the beginning of the answer."""

    @property
    def key(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Position:
    at: int  # characters
    is_turn: bool = False  # the end of a turn before the answer


@dataclass(frozen=True, slots=True)
class Encoded:
    text: str
    token_ids: tuple[int, ...]
    ends: Sequence[int]  # where each token ends in the text

    def tokens_before(self, position: int) -> int:
        """How many tokens lie wholly before this character."""
        return bisect_right(self.ends, position)


class Boundaries:
    def __init__(self) -> None:
        # The turns of a beginning -> (its length in the text, digest of that text).
        self._seen: OrderedDict[bytes, tuple[int, bytes]] = OrderedDict()

    def find(self, text: str, turns: Turns, draw: Draw) -> list[Position]:
        found = _Beginnings(text)
        positions = [*self._head(found, turns, draw), *self._turns(found, turns, draw)]
        last = max((p.at for p in positions), default=0)
        return [*positions, *_answer(text, last)]

    def _head(self, text: _Beginnings, turns: Turns, draw: Draw) -> Iterator[Position]:
        """After the system message and the tools, in either order."""
        head = next((i for i, t in enumerate(turns) if not is_system(t)), len(turns))
        system = turns[:head]
        others = tuple(Message(t.role, ELSE.parts) for t in system)
        parts = [(system, True), (system, False), (others, True)] if head else [(system, True)]
        for part, tools in parts:
            key = _digest(draw.key, repr((part, tools, system)))
            length = self._beginning(key, text, (*part, ELSE), draw, tools)
            if length:
                yield Position(length)

    def _turns(self, text: _Beginnings, turns: Turns, draw: Draw) -> Iterator[Position]:
        keys = _running_digests(draw.key, turns)
        text.digest_all(self._seen[key][0] for key in keys if key in self._seen)
        last = len(turns) - 1 if draw.goes_on else len(turns)
        for end in range(last, 0, -1):
            if keys[end] in self._seen or last - end < MAX_NEW_TURNS:
                length = self._beginning(keys[end], text, turns[:end], draw)
                if length:
                    yield Position(length, is_turn=True)

    def _beginning(
        self, key: bytes, text: _Beginnings, turns: Turns, draw: Draw, tools: bool = True
    ) -> int:
        """How much of the text these turns are; 0 when it does not begin with them."""
        known = self._seen.get(key)
        if known is None:
            drawn = draw(turns, tools)
            length = 0 if drawn is None else common_prefix(text.text, drawn)
            known = (length, text.digest(length))
            self._remember(key, known)
        length, digest = known
        return length if text.digest(length) == digest else 0

    def _remember(self, key: bytes, beginning: tuple[int, bytes]) -> None:
        self._seen[key] = beginning
        if len(self._seen) > MAX_REMEMBERED:
            self._seen.popitem(last=False)


class _Beginnings:
    """The digests of a text's beginnings, many of them in one pass over it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._digests: dict[int, bytes] = {}

    def digest(self, length: int) -> bytes:
        if length not in self._digests:
            self._digests[length] = _digest(self.text[:length])
        return self._digests[length]

    def digest_all(self, lengths: Iterable[int]) -> None:
        running, before = hashlib.blake2b(digest_size=16), 0
        for length in sorted(set(lengths)):
            running.update(self.text[before:length].encode("utf-8", "surrogatepass"))
            before = length
            ended = running.copy()
            ended.update(b"\0")
            self._digests[length] = ended.digest()


def _answer(text: str, start: int) -> Iterator[Position]:
    """Before the tag that opens (or skips) the thoughts of the answer to come."""
    found = [p for p in (text.find(opener, start) for opener in ANSWER_OPENERS) if p >= 0]
    if found:
        yield Position(min(found))


def _running_digests(key: str, turns: Turns) -> list[bytes]:
    """The digest of the first n turns, for each n."""
    running = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16)
    digests = [running.digest()]
    for turn in turns:
        for part in turn.parts:
            if isinstance(part, ImagePart):
                running.update(hashlib.blake2b(part.content, digest_size=16).digest())
            else:
                running.update(part.text.encode("utf-8", "surrogatepass") + b"\0")
        rest = (turn.role, turn.reasoning, turn.tool_calls, turn.tool_call_id, turn.name)
        running.update(repr(rest).encode("utf-8", "surrogatepass"))
        digests.append(running.digest())
    return digests


def _digest(*texts: str) -> bytes:
    running = hashlib.blake2b(digest_size=16)
    for text in texts:
        running.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return running.digest()
