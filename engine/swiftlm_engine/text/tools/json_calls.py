"""Calls written as JSON objects that hold a name and arguments, alone, in a list, or in a row."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

from swiftlm_engine.text.emitter import Emitter
from swiftlm_engine.text.tools.json_stream import JsonStream, Segment, mend_object

NAME_KEYS = ("name", "function", "tool_name", "tool")
EARLY_NAMES = ("name", "tool_name")  # nobody calls an argument so beside them
ARGUMENT_KEYS = ("arguments", "parameters", "args", "params", "input")
OTHER_KEYS = ("type", "id", "call_id", "tool_call_id", "index")
CALL_KEYS = frozenset((*NAME_KEYS, *ARGUMENT_KEYS, *OTHER_KEYS))


@dataclass(frozen=True, slots=True)
class JsonCallsSyntax:
    start: str  # what was written before the first object
    ends: tuple[str, ...] = ()  # what may follow the last
    bare: bool = False  # no markers: only an object that is surely a call counts
    keyed: bool = False  # the object's one member is the call: its key the name


class _JsonAt(Enum):
    BETWEEN = auto()
    OBJECT = auto()
    SWALLOWING = auto()


class JsonCallsReader:
    def __init__(self, emitter: Emitter, syntax: JsonCallsSyntax, known: Collection[str]) -> None:
        self._emitter = emitter
        self._syntax = syntax
        self._known = known
        self._at = _JsonAt.BETWEEN
        self._raw = syntax.start  # of the call being read
        self._held = ""
        self._object: CallObject | None = None
        self._calls = 0
        self._in_list = False

    def feed(self, text: str) -> str | None:
        self._held += text
        steps = {
            _JsonAt.BETWEEN: self._between,
            _JsonAt.OBJECT: self._read_object,
            _JsonAt.SWALLOWING: self._swallow,
        }
        while True:
            before = self._at, len(self._held)
            rest = steps[self._at]()
            if rest is not None or before == (self._at, len(self._held)):
                return rest

    def finish(self, cut: bool) -> None:
        unread = self._raw + self._held
        if not cut and self._object is not None and self._at is _JsonAt.OBJECT:
            self._object.end()
        if cut:
            self._emitter.drop_call()
        elif self._at is _JsonAt.OBJECT or (self._calls == 0 and self._at is _JsonAt.BETWEEN):
            self._emitter.reject_call(unread)

    def _between(self) -> str | None:
        held = self._held.lstrip()
        for end in self._syntax.ends:
            if held.startswith(end):
                return self._over(held[len(end) :], self._raw + self._held[: -len(held)] + end)
        if not held or any(end.startswith(held) for end in self._syntax.ends):
            return None
        first = held[0]
        separates = (first == "[" and not self._calls) or (first in ",;" and self._calls)
        if first == "{":
            self._begin_object(held)
        elif first == "}" and self._calls:  # one brace too many
            self._raw += self._held[: len(self._held) - len(held) + 1]
            self._held = held[1:]
        elif separates or (first == "]" and self._in_list):
            self._in_list = first == "[" or (self._in_list and first != "]")
            self._raw += self._held[: len(self._held) - len(held) + 1]
            self._held = held[1:]
        else:
            return self._over(self._held, self._raw)
        return None

    def _over(self, rest: str, raw: str) -> str:
        if not self._calls:
            self._emitter.reject_call(raw)
        return rest

    def _begin_object(self, held: str) -> None:
        if self._calls:
            self._raw = ""
        self._raw += self._held[: -len(held)]
        self._held = held
        self._object = CallObject(self._emitter, self._syntax, self._known)
        self._at = _JsonAt.OBJECT

    def _read_object(self) -> str | None:
        call = self._object
        if call is None:
            return self._held
        call.feed(self._held)
        rest = call.stream.rest if call.over else ""
        self._raw += self._held[: len(self._held) - len(rest)]
        self._held = rest
        if not call.over:
            return None
        self._at = _JsonAt.BETWEEN
        if not call.close():
            return self._reject()
        self._calls += 1
        return None

    def _reject(self) -> str | None:
        if self._emitter.call_is_shown:
            self._emitter.reject_call("")
            self._at = _JsonAt.SWALLOWING
            return None
        self._emitter.reject_call(self._raw)
        return self._held

    def _swallow(self) -> str | None:
        """Past the end of a call that was shown and then broke."""
        for end in self._syntax.ends:
            _, found, rest = self._held.partition(end)
            if found:
                return rest
        self._held = self._held[-max((len(e) for e in self._syntax.ends), default=0) :]
        return None


class CallObject:
    """One object. Its call opens as soon as the name and the start of the arguments are there."""

    def __init__(self, emitter: Emitter, syntax: JsonCallsSyntax, known: Collection[str]) -> None:
        self.stream = JsonStream(lenient=not syntax.bare)
        self._emitter = emitter
        self._bare = syntax.bare
        self._keyed = syntax.keyed
        self._known = known
        self._values: dict[str, str] = {}
        self._streamed_key: str | None = None
        self._strange = False

    @property
    def over(self) -> bool:
        return self.stream.done or self.stream.failed or self._strange

    def feed(self, text: str) -> None:
        self._take(self.stream.feed(text))

    def _take(self, segments: list[Segment]) -> None:
        for segment in segments:
            if segment.key is None:
                continue
            if self._bare and segment.key not in CALL_KEYS:
                # No call has this member: let the text go at once.
                self._strange = True
                return
            if segment.key == self._streamed_key:
                self._emitter.arguments(segment.text)
            else:
                self._values[segment.key] = self._values.get(segment.key, "") + segment.text
        self._open_early()

    def end(self) -> None:
        self._take(self.stream.end())

    def close(self) -> bool:
        """Whether the object was a call."""
        if self.stream.failed or self._strange:
            return False
        if self._streamed_key is None:
            call = self._by_key() if self._keyed else _call_of(self._values)
            if call is None or (self._bare and not self._surely(call[0])):
                return False
            self._emitter.open_call(call[0])
            self._emitter.arguments(call[1])
        self._emitter.close_call()
        return True

    def _by_key(self) -> tuple[str, str] | None:
        if len(self._values) != 1:
            return _call_of(self._values)
        [(name, arguments)] = self._values.items()
        return (name, "{}") if arguments == "null" else None

    def _open_early(self) -> None:
        if self._streamed_key is not None:
            return
        first = next(iter(self._values), "")
        if self._keyed and first not in NAME_KEYS and self._values.get(first, "")[:1] == "{":
            self._streamed_key = first
            self._emitter.open_call(first)
            self._emitter.arguments(self._values[first])
        called = next((k for k in EARLY_NAMES if k in self.stream.finished_keys), None)
        if called is None:
            return
        name = _string(self._values.get(called))
        key = next((k for k in ARGUMENT_KEYS if self._values.get(k, "").startswith("{")), None)
        if name and key and (not self._bare or name in self._known):
            self._streamed_key = key
            self._emitter.open_call(name)
            self._emitter.arguments(self._values[key])

    def _surely(self, name: str) -> bool:
        return name in self._known and any(key in self._values for key in ARGUMENT_KEYS)


def _call_of(values: dict[str, str]) -> tuple[str, str] | None:
    """Name and JSON text of the arguments, in any of the shapes models have been seen to use."""
    for key in NAME_KEYS:
        value = values.get(key, "")
        if name := _string(value):
            arguments = _arguments_of(values)
            return None if arguments is None else (name, arguments)
        if value.startswith("{"):
            inner = {k: json.dumps(v, ensure_ascii=False) for k, v in json.loads(value).items()}
            return _call_of(inner | {k: v for k, v in values.items() if k in ARGUMENT_KEYS})
    return None


def _arguments_of(values: dict[str, str]) -> str | None:
    text = next((values[key] for key in ARGUMENT_KEYS if key in values), "null")
    if text == "null":
        return "{}"
    if text.startswith("{"):
        return text
    return mend_object(_string(text) or "")  # an object that was written into a string


def _string(text: str | None) -> str | None:
    return str(json.loads(text)) if text and text.startswith('"') else None
