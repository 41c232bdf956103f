"""Harmony, the messages of gpt-oss: a header says who speaks to whom on which channel.

`analysis` is reasoning, `final` is the answer, `commentary` without a recipient is an answer too,
and a message to `functions.NAME` is a call, on whatever channel. A header without a body says
nothing; a recipient that was not offered is not shown. Muse writes headers of the same make.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum, auto

from swiftlm_engine.text.emitter import Emitter
from swiftlm_engine.text.markers import first_marker, held_length, unmarked
from swiftlm_engine.text.reader import TextReader
from swiftlm_engine.text.tools.json_stream import JsonStream


class HarmonyChannel(Enum):
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()
    NOWHERE = auto()


@dataclass(frozen=True, slots=True)
class Destination:
    route: HarmonyChannel
    name: str = ""


@dataclass(frozen=True, slots=True)
class HarmonyMarkers:
    message: str
    starts: tuple[str, ...]  # a new header: <|start|>, <|channel|>
    ends: tuple[str, ...]  # <|end|>, <|call|>, <|return|>


class HarmonyReader:
    """`header` is what the prompt has written of the first message; `content` reads the bodies
    of answers, where a family puts its calls into them."""

    def __init__(
        self,
        emitter: Emitter,
        markers: HarmonyMarkers,
        destination: Callable[[str], Destination],
        header: str = "",
        content: TextReader | None = None,
    ) -> None:
        self._emitter = emitter
        self._markers = markers
        self._destination_of = destination
        self._content = content
        self._to: Destination | None = None
        self._header = ""
        self._held = ""
        self._raw = ""
        self._written = ""  # the header of the message being read
        self._json = JsonStream(lenient=True)
        self.push(header)

    @property
    def in_reasoning(self) -> bool:
        return self._to is not None and self._to.route is HarmonyChannel.REASONING

    def push(self, text: str) -> None:
        self._held += text
        while self._read_header() if self._to is None else self._read_body(self._to):
            pass

    def finish(self, cut: bool) -> None:
        if self._to is None:
            header = unmarked(self._header + self._held).strip()
            if not cut and header:
                self._emitter.content(header)
        else:
            self._body(self._to, self._held)
            self._leave(self._to, cut)
        self._held = ""
        if self._content is not None:
            self._content.finish(cut)
        self._emitter.finish()

    def _read_header(self) -> bool:
        """Up to <|message|>; a header that ends otherwise is dropped."""
        markers = self._markers
        wanted = (markers.message, *markers.starts, *markers.ends)
        found = first_marker(self._held, wanted)
        if found is None:  # nobody bounds a header: what was searched is not searched again
            safe = len(self._held) - held_length(self._held, wanted)
            self._header += self._held[:safe]
            self._held = self._held[safe:]
            return False
        position, marker = found
        self._header += self._held[:position]
        self._held = self._held[position + len(marker) :]
        if marker == markers.message:
            self._enter(self._destination_of(unmarked(self._header)))
        else:
            self._header = "" if marker in markers.ends else self._header + marker
        return True

    def _enter(self, to: Destination) -> None:
        self._to = to
        self._raw = ""
        header, self._header = unmarked(self._header), ""
        self._written = header.removeprefix("<|start|>assistant") + unmarked(self._markers.message)
        if to.route is HarmonyChannel.CALL:
            self._json = JsonStream(lenient=True)
            self._emitter.open_call(to.name)

    def _read_body(self, to: Destination) -> bool:
        markers = (*self._markers.ends, *self._markers.starts)
        if to.route is HarmonyChannel.CALL and not (self._json.done or self._json.failed):
            return self._read_arguments()
        found = first_marker(self._held, markers)
        if found is None:
            safe = len(self._held) - held_length(self._held, markers)
            self._body(to, self._held[:safe])
            self._held = self._held[safe:]
            return False
        position, marker = found
        self._body(to, self._held[:position])
        self._leave(to, cut=False)
        self._held = self._held[position + len(marker) :]
        if marker in self._markers.starts:
            self._header = marker
        return True

    def _read_arguments(self) -> bool:
        """The arguments may hold the text of any marker: they end where the object ends."""
        held, self._held = self._held, ""
        for segment in self._json.feed(held):
            self._emitter.arguments(segment.text)
        over = self._json.done or self._json.failed
        if over:
            self._held = self._json.rest
        self._raw += held[: len(held) - len(self._held)]
        if self._json.done:
            self._emitter.close_call()
            self._emitter.end_block(self._written + self._raw)
        return over

    def _body(self, to: Destination, text: str) -> None:
        if to.route is HarmonyChannel.REASONING:
            self._emitter.reasoning(text)
        elif to.route is HarmonyChannel.CONTENT and text:
            if self._content is not None:
                self._content.push(text)
            else:
                self._emitter.content(text)
        elif to.route is HarmonyChannel.CALL and self._json.failed:
            self._raw += text

    def _leave(self, to: Destination, cut: bool) -> None:
        self._to = None
        if to.route is HarmonyChannel.REASONING:
            self._emitter.end_reasoning()
        elif to.route is HarmonyChannel.CALL and not self._json.done:
            if not cut:
                for segment in self._json.end():
                    self._emitter.arguments(segment.text)
            if cut:
                self._emitter.drop_call()
            elif self._raw.strip():
                self._emitter.reject_call(self._raw)
            else:
                self._emitter.arguments("{}")
                self._emitter.close_call()
                self._emitter.end_block(self._written + self._raw)


def harmony_destination(known: Collection[str] | None) -> Callable[[str], Destination]:
    """`known` are the tools on offer; None where calls are not allowed, and are text."""

    def destination(header: str) -> Destination:
        recipient = re.search(r"\bto=([^\s<]+)", header)
        channel = re.findall(r"<\|channel\|>\s*(\w*)", header)
        to = recipient[1] if recipient else ""
        name = to.removeprefix("functions.")
        if name and name != to and known is None:
            return Destination(HarmonyChannel.CONTENT)
        if name and (name != to or name in (known or ())):
            return Destination(HarmonyChannel.CALL, name)
        if channel and channel[-1] == "analysis":
            return Destination(HarmonyChannel.REASONING)
        return Destination(
            HarmonyChannel.NOWHERE
            if to not in ("", "user", "assistant")
            else HarmonyChannel.CONTENT
        )

    return destination


def muse_destination(header: str) -> Destination:
    recipient = re.search(r"\bto=(\S+)", header)
    to_itself = recipient is not None and recipient[1] == "self"
    return Destination(HarmonyChannel.REASONING if to_itself else HarmonyChannel.CONTENT)
