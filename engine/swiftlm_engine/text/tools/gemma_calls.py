"""Gemma's calls, `call:name{key:<|"|>text<|"|>,n:1}`, as they come to JSON.

Keys stand bare, strings between a delimiter of their own and without escapes.
"""

import json
import re
from dataclasses import dataclass
from enum import Enum, auto

from swiftlm_engine.text.emitter import Emitter
from swiftlm_engine.text.markers import held_length, unmarked
from swiftlm_engine.text.tools.values import json_literal

NAME = re.compile(r"call:([\w.:/-]+)\{")
SCALAR_END = re.compile(r"[,}\]]")
UNFINISHED_NAME = re.compile(r"[\w.:/-]{0,256}")
MAX_DEPTH = 128


class _GemmaExpect(Enum):
    KEY = auto()
    VALUE = auto()
    STRING = auto()
    COMMA_OR_END = auto()


class GemmaStream:
    """Feed it from behind the first brace; `done` when that brace is closed."""

    def __init__(self, delimiter: str) -> None:
        self.done = False
        self.failed = False
        self.held = ""
        self._delimiter = delimiter
        self._closers = ["}"]
        self._expect = _GemmaExpect.KEY
        self._first = True  # no member of the innermost container yet
        self._searched = 0  # of what is held, for the end of a value without delimiters
        self._out: list[str] = ["{"]

    def feed(self, text: str) -> str:
        self.held += text
        steps = {
            _GemmaExpect.KEY: self._key,
            _GemmaExpect.VALUE: self._value,
            _GemmaExpect.STRING: self._string,
            _GemmaExpect.COMMA_OR_END: self._comma_or_end,
        }
        while not self.done and not self.failed and steps[self._expect]():
            pass
        out, self._out = "".join(self._out), []
        return out

    def _key(self) -> bool:
        held = self.held = self.held.lstrip()
        if held.startswith("}"):
            return self._close()
        if held.startswith(self._delimiter):
            key, end, rest = held[len(self._delimiter) :].partition(self._delimiter)
            colon = rest.lstrip()[:1]
            if not end or not colon:
                return False
            self.failed = colon != ":"
            if self.failed:
                return False
            rest = rest.lstrip()[1:]
        else:
            key, end, rest = held.partition(":")
            self.failed = any(c in key for c in "{}[],")
            if self.failed or not end:
                return False
        self.held = rest
        self._member(json.dumps(unmarked(key).strip(), ensure_ascii=False) + ": ")
        self._expect = _GemmaExpect.VALUE
        return True

    def _value(self) -> bool:
        held = self.held = self.held.lstrip()
        if not held or (self._delimiter.startswith(held) and held != self._delimiter):
            return False
        in_list = self._closers[-1] == "]"
        if held[0] in "]}":
            self.failed = not (in_list and held[0] == "]")
            return not self.failed and self._close()
        if held.startswith(self._delimiter):
            self.held = held[len(self._delimiter) :]
            self._begin_value('"')
            self._expect = _GemmaExpect.STRING
            return True
        return self._open(held[0]) if held[0] in "{[" else self._scalar()

    def _scalar(self) -> bool:
        match = SCALAR_END.search(self.held, self._searched)
        self._searched = 0 if match else len(self.held)
        if match is None:
            return False
        self._begin_value(json_literal(unmarked(self.held[: match.start()]).strip()))
        self.held = self.held[match.start() :]
        self._expect = _GemmaExpect.COMMA_OR_END
        return True

    def _string(self) -> bool:
        text, end, rest = self.held.partition(self._delimiter)
        if not end:
            held = held_length(text, [self._delimiter])
            text, self.held = text[: len(text) - held], text[len(text) - held :]
        else:
            self.held = rest
            self._expect = _GemmaExpect.COMMA_OR_END
        self._out.append(
            json.dumps(unmarked(text), ensure_ascii=False)[1:-1] + ('"' if end else "")
        )
        return bool(end)

    def _comma_or_end(self) -> bool:
        held = self.held = self.held.lstrip()
        if not held:
            return False
        if held[0] == ",":
            self.held = held[1:]
            self._expect = _GemmaExpect.KEY if self._closers[-1] == "}" else _GemmaExpect.VALUE
            return True
        self.failed = held[0] != self._closers[-1]
        return not self.failed and self._close()

    def _open(self, bracket: str) -> bool:
        self.failed = len(self._closers) >= MAX_DEPTH
        self.held = self.held[1:]
        self._begin_value(bracket)
        self._closers.append("}" if bracket == "{" else "]")
        self._expect = _GemmaExpect.KEY if bracket == "{" else _GemmaExpect.VALUE
        self._first = True
        return True

    def _close(self) -> bool:
        self.held = self.held[1:]
        self._out.append(self._closers.pop())
        self._first = False
        self._expect = _GemmaExpect.COMMA_OR_END
        self.done = not self._closers
        return True

    def _begin_value(self, text: str) -> None:
        if self._closers[-1] == "]":
            self._member(text)
        else:
            self._out.append(text)

    def _member(self, text: str) -> None:
        self._out.append(text if self._first else ", " + text)
        self._first = False


@dataclass(frozen=True, slots=True)
class GemmaSyntax:
    start: str
    end: str
    delimiter: str


class GemmaCallsReader:
    def __init__(self, emitter: Emitter, syntax: GemmaSyntax) -> None:
        self._emitter = emitter
        self._syntax = syntax
        self._stream: GemmaStream | None = None
        self._held = ""
        self._raw = syntax.start
        self._calls = 0
        self._broken = False  # a call was shown and then could not be read

    def feed(self, text: str) -> str | None:
        if self._broken:
            self._held += text
            _, found, rest = self._held.partition(self._syntax.end)
            return rest if found else None
        if self._stream is None:
            self._held += text
            return self._begin()
        self._raw += text
        return self._read(self._stream, text)

    def finish(self, cut: bool) -> None:
        if cut:
            self._emitter.drop_call()
        elif not self._broken and (self._stream is not None or not self._calls):
            self._emitter.reject_call(self._raw + self._held)

    def _begin(self) -> str | None:
        held, end = self._held.lstrip(), self._syntax.end
        if held.startswith(end):
            if not self._calls:
                self._emitter.reject_call(self._raw + end)
            return held[len(end) :]
        match = NAME.match(held)
        if match is None:
            if _may_become_call(held) or end.startswith(held):
                return None
            if not self._calls:
                self._emitter.reject_call(self._raw)
            return self._held
        self._emitter.open_call(match[1])
        self._stream = GemmaStream(self._syntax.delimiter)
        self._raw = self._raw + self._held if not self._calls else held
        self._held = ""
        return self._read(self._stream, held[match.end() :])

    def _read(self, stream: GemmaStream, text: str) -> str | None:
        self._emitter.arguments(stream.feed(text))
        if stream.failed:
            return self._reject(stream.held)
        if not stream.done:
            return None
        self._emitter.close_call()
        self._calls += 1
        self._stream, self._held = None, stream.held
        return self._begin() if self._held else None

    def _reject(self, unread: str) -> str | None:
        self._broken = self._emitter.call_is_shown
        self._emitter.reject_call(self._raw[: len(self._raw) - len(unread)])
        if not self._broken:
            return unread
        self._held = unread
        return self.feed("")


def _may_become_call(text: str) -> bool:
    if len(text) < len("call:"):
        return "call:".startswith(text)
    return text.startswith("call:") and UNFINISHED_NAME.fullmatch(text[5:]) is not None
