"""Calls written as a header that names the tool, and a JSON object with the arguments.

Mistral writes `name[ARGS]{...}`, Kimi K2 and DeepSeek mark where each call begins and ends and
put them in a section. The header is everything before the first brace.
"""

# ruff: noqa: RUF001 - the tokens of DeepSeek are spelled with wide bars

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from swiftlm_engine.text.emitter import Emitter
from swiftlm_engine.text.markers import first_marker, held_length, unmarked
from swiftlm_engine.text.tools.json_stream import JsonStream

MAX_HEADER = 400


@dataclass(frozen=True, slots=True)
class CallHeader:
    name: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class HeaderSyntax:
    start: str
    parse: Callable[[str], CallHeader | None]
    call_start: str = ""  # empty: the start marker itself begins a call, and one call is all
    call_end: str = ""
    section_end: str = ""


class _HeaderAt(Enum):
    SECTION = auto()
    HEADER = auto()
    ARGUMENTS = auto()


class HeaderCallsReader:
    def __init__(self, emitter: Emitter, syntax: HeaderSyntax) -> None:
        self._emitter = emitter
        self._syntax = syntax
        self._at = _HeaderAt.SECTION if syntax.call_start else _HeaderAt.HEADER
        self._raw = syntax.start
        self._held = ""
        self._stream = JsonStream(lenient=True)
        self._calls = 0

    def feed(self, text: str) -> str | None:
        self._held += text
        steps = {
            _HeaderAt.SECTION: self._in_section,
            _HeaderAt.HEADER: self._read_header,
            _HeaderAt.ARGUMENTS: self._read_arguments,
        }
        while True:
            before = self._at, len(self._held)
            rest = steps[self._at]()
            if rest is not None or before == (self._at, len(self._held)):
                return rest

    def finish(self, cut: bool) -> None:
        inside = self._at is not _HeaderAt.SECTION or self._calls == 0
        if not cut and self._at is _HeaderAt.ARGUMENTS:
            for segment in self._stream.end():
                self._emitter.arguments(segment.text)
        if cut:
            self._emitter.drop_call()
        elif inside:
            self._emitter.reject_call(self._raw + self._held)

    def _in_section(self) -> str | None:
        """Between calls; stray words in a section with calls are dropped."""
        syntax = self._syntax
        markers = (syntax.call_start, syntax.section_end, syntax.call_end)
        found = first_marker(self._held, markers)
        if found is None:
            self._take(len(self._held) - held_length(self._held, markers))
            return None
        position, marker = found
        stray = self._raw.removeprefix(syntax.start) + self._held[:position]
        self._take(position + len(marker))
        if marker == syntax.call_start:
            self._at = _HeaderAt.HEADER
            self._raw = self._raw if not self._calls else marker
        elif marker == syntax.section_end:
            if not self._calls and stray.strip():
                self._emitter.reject_call(self._raw)
            return self._held
        return None

    def _read_header(self) -> str | None:
        brace = self._held.find("{")
        if brace < 0:
            ends = [e for e in (self._syntax.call_end, self._syntax.section_end) if e]
            if len(self._held) < MAX_HEADER and first_marker(self._held, ends) is None:
                return None
            return self._reject()
        header = self._syntax.parse(unmarked(self._held[:brace]))
        if header is None:
            return self._reject()
        self._take(brace)
        self._emitter.open_call(header.name, header.call_id)
        self._stream = JsonStream(lenient=True)
        self._at = _HeaderAt.ARGUMENTS
        return None

    def _read_arguments(self) -> str | None:
        for segment in self._stream.feed(self._held):
            self._emitter.arguments(segment.text)
        rest = self._stream.rest if self._stream.done or self._stream.failed else ""
        self._take(len(self._held) - len(rest))
        if self._stream.failed:
            return self._reject()
        if not self._stream.done:
            return None
        self._emitter.close_call()
        self._calls += 1
        self._raw = ""
        if not self._syntax.call_start:
            return self._held
        self._at = _HeaderAt.SECTION
        return None

    def _reject(self) -> str | None:
        shown = self._emitter.call_is_shown
        self._emitter.reject_call(self._raw)
        self._raw = ""
        if shown and self._syntax.call_start:
            self._at = _HeaderAt.SECTION
            self._calls += 1  # what is left of it is no text either
            return None
        return self._held

    def _take(self, length: int) -> None:
        self._raw += self._held[:length]
        self._held = self._held[length:]


# -- the headers of the families


def mistral_header(header: str) -> CallHeader | None:
    match = re.fullmatch(r"\s*([\w.:/-]+?)\s*(?:\[CALL_ID\]\s*(\w+)\s*)?(?:\[ARGS\])?\s*", header)
    return CallHeader(match[1], match[2]) if match else None


def kimi_header(header: str) -> CallHeader | None:
    """The id carries the name: `functions.get_weather:0`."""
    head, marker, _ = header.partition("<|tool_call_argument_begin|>")
    match = re.fullmatch(r"\s*((?:functions\.)?([\w.:/-]+):\d+)\s*", head)
    return CallHeader(match[2], match[1]) if match and marker else None


def deepseek_header(header: str) -> CallHeader | None:
    """`name<sep>` since V3.1; before, `function<sep>name` and a fence of Markdown."""
    head, separator, tail = header.partition("<｜tool▁sep｜>")
    name = tail.replace("```json", "").replace("```", "").strip() or head.strip()
    return CallHeader(name) if separator and re.fullmatch(r"[\w.:/-]+", name) else None


def solar_header(header: str) -> CallHeader | None:
    match = re.fullmatch(
        r"\s*([\w.:/-]*)\s*<\|tool_call:name\|>\s*([\w.:/-]+)\s*<\|tool_call:args\|>\s*", header
    )
    return CallHeader(match[2], match[1] or None) if match else None


def plamo_header(header: str) -> CallHeader | None:
    begin, end = r"<\|plamo:begin_tool_{}:plamo\|>", r"<\|plamo:end_tool_{}:plamo\|>"
    name = rf"\s*{begin.format('name')}\s*([\w.:/-]+)\s*{end.format('name')}\s*"
    match = re.fullmatch(rf"{name}{begin.format('arguments')}\s*", header)
    return CallHeader(match[1]) if match else None
