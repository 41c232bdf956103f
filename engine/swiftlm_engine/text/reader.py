"""Reader: the text of one answer to events; thoughts, content and calls one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from swiftlm_engine.text.emitter import Emitter
from swiftlm_engine.text.markers import first_marker, held_length
from swiftlm_engine.text.reasoning import Opening, Thoughts


class CallReader(Protocol):
    """Reads from behind a start marker to where the calls are over. It never raises."""

    def feed(self, text: str) -> str | None:
        """None while the calls go on; then the text behind them."""

    def finish(self, cut: bool) -> None:
        """The text ends here: cut off, or because the model had no more to say."""


@dataclass(frozen=True, slots=True)
class Start:
    """What begins a call: how to make its reader, and whether that wants the marker too."""

    make: Callable[[], CallReader]
    replay: bool = False


Starts = Mapping[str, Start]


class TextReader(Protocol):
    @property
    def in_reasoning(self) -> bool: ...

    def push(self, text: str) -> None: ...

    def finish(self, cut: bool) -> None: ...


class PlainReader:
    """Everything is content."""

    in_reasoning = False

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter

    def push(self, text: str) -> None:
        self._emitter.content(text)

    def finish(self, cut: bool) -> None:
        self._emitter.finish()


class AnswerReader:
    """`starts` begin a call anywhere in the answer, `bare_starts` only where it begins.

    `dropped` is markup that says nothing.
    """

    def __init__(
        self,
        emitter: Emitter,
        thoughts: Thoughts | None,
        starts: Starts,
        bare_starts: Starts | None = None,
        dropped: tuple[str, ...] = (),
    ) -> None:
        self._emitter = emitter
        self._thoughts = thoughts
        self._starts = starts
        self._bare_starts = bare_starts or {}
        self._markers = (*starts, *dropped)
        self._call: CallReader | None = None
        self._fresh = True  # nothing but markup since the beginning, the thoughts, or a call
        self._begun = False  # the answer has some content or a call
        self._held = ""
        self._marker = ""  # what began the call being read, unless its reader got that too
        self._fed: list[str] = []  # what its reader got

    @property
    def in_reasoning(self) -> bool:
        return self._thoughts is not None and self._thoughts.are_open

    def push(self, text: str) -> None:
        self._held += text
        while self._held and self._step():
            pass

    def finish(self, cut: bool) -> None:
        if self._call is not None:
            self._call.finish(cut)
            self._end_call(whole=not self._emitter.interrupted)
        elif self.in_reasoning:
            self._emitter.reasoning(self._held)
        else:
            self._emitter.content(self._held)
        self._held = ""
        self._emitter.finish()

    def _step(self) -> bool:
        """One piece further; False when more text is needed."""
        if self._call is not None:
            return self._read_call(self._call)
        if self._thoughts is not None and self._thoughts.are_open:
            return self._think(self._thoughts)
        if self._fresh and not self._begin():
            return False
        return self._answer()

    def _read_call(self, call: CallReader) -> bool:
        self._fed.append(self._held)
        rest = call.feed(self._held)
        self._held = rest or ""
        if rest is None:
            return False
        self._end_call(rest)
        if self._fed == [rest]:
            # The reader wanted none of it: its own start marker is text.
            self._say(rest[0])
            self._held = rest[1:]
        return True

    def _end_call(self, rest: str = "", whole: bool = True) -> None:
        written = "".join(self._fed)
        self._fed = [written]
        raw = self._marker + written[: len(written) - len(rest)]
        self._fresh = self._emitter.end_block(raw, whole)  # thoughts follow calls, not other text
        self._call = None

    def _think(self, thoughts: Thoughts) -> bool:
        thought = thoughts.read(self._held)
        self._held = thought.rest
        self._emitter.reasoning(thought.text)
        if thought.over:
            self._emitter.end_reasoning()
            self._fresh = True
        return thought.over

    def _begin(self) -> bool:
        """Whether it is clear that no thoughts and no bare call begin here, or what does."""
        if self._thoughts is not None:
            opening, self._held = self._thoughts.opening(self._held)
            if opening is not Opening.NO:
                return opening is Opening.YES
        if self._bare_starts and not self._begun:
            stripped = self._held.lstrip()
            if not stripped:
                return False
            for marker, start in self._bare_starts.items():
                if stripped.startswith(marker):
                    self._say(self._held[: -len(stripped)])
                    self._start(start, stripped, len(marker))
                    return True
        self._fresh = False
        return True

    def _answer(self) -> bool:
        if self._call is not None or self.in_reasoning:
            return True  # _begin has found something
        found = first_marker(self._held, self._markers)
        if found is None:
            safe = len(self._held) - held_length(self._held, self._markers)
            self._say(self._held[:safe])
            self._held = self._held[safe:]
            return False
        position, marker = found
        self._say(self._held[:position])
        if marker in self._starts:
            self._start(self._starts[marker], self._held[position:], len(marker))
        else:
            self._held = self._held[position + len(marker) :]
        return True

    def _say(self, text: str) -> None:
        if text:
            self._begun = self._begun or not text.isspace()
            self._emitter.content(text)

    def _start(self, start: Start, text: str, marker_length: int) -> None:
        self._held = text if start.replay else text[marker_length:]
        self._marker = "" if start.replay else text[:marker_length]
        self._fed = []
        self._call = start.make()
        self._begun = True
        self._fresh = False
