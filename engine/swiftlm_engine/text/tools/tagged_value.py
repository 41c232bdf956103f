"""One value between tags on its way to JSON: a string at once, anything else when it is whole."""

import json
import re
from copy import copy
from enum import Enum, auto

from swiftlm_engine.text.markers import unmarked
from swiftlm_engine.text.tools.values import json_literal, json_value

QUOTE = re.compile(r'\\.|"|\\$', re.DOTALL)
ONLY_STRING = frozenset({"string"})
CDATA = re.compile(r"\s*<!\[CDATA\[(.*?)\]\]>\s*", re.DOTALL)


class ValueStyle(Enum):
    RAW = auto()  # everything between the tags is the value
    WRAPPED = auto()  # a line break on both sides is markup
    LITERAL = auto()  # raw strings; anything else was written as JSON, whatever the schema
    CDATA = auto()  # a string that needs it stands in a CDATA block


class Quotes:
    """Follows JSON that begins with one of `openers`: a tag inside a string of it is text."""

    def __init__(self, openers: str) -> None:
        self.are_open = False
        self._openers = openers
        self._begun = False
        self._escape = ""  # a backslash at the end of what was fed

    def feed(self, text: str) -> None:
        if not self._begun:
            text = text.lstrip()
            if not text:
                return
            self._begun = True
            if text[0] not in self._openers:
                self._openers = ""
        if not self._openers:
            return
        text, self._escape = self._escape + text, ""
        for match in QUOTE.finditer(text):
            if match[0] == '"':
                self.are_open = not self.are_open
            elif match[0] == "\\":
                self._escape = match[0]


class TaggedValue:
    def __init__(
        self,
        types: frozenset[str] | None,
        kind: str | None,
        style: ValueStyle,
        words: frozenset[str] = frozenset(),
    ) -> None:
        self.muted = False
        self._types = types
        self._words = words
        self._kind = kind
        self._style = style
        by_kind = kind in ("string", "true")  # K3 names the type, DSML says string="true"
        by_schema = kind is None and types == ONLY_STRING and style is not ValueStyle.CDATA
        by_schema = by_schema and not words
        self._streams = by_kind or by_schema
        literal = kind is not None or (style is ValueStyle.LITERAL and types is None)
        self._quotes = Quotes("" if self._streams else '{["' if literal else "{[")
        self._begun = False
        self._unwraps = False
        self._text = ""

    @property
    def quotes(self) -> "Quotes":
        """Where the value is JSON: whether its text so far ends inside a string."""
        return copy(self._quotes)

    def push(self, text: str, over: bool) -> str:
        """JSON text; what is not returned yet comes with a later piece."""
        self._text += text
        self._quotes.feed(text)
        if self.muted or (not self._text and not over):
            return ""
        begins, self._begun = not self._begun, True
        if begins and self._style is ValueStyle.WRAPPED:
            self._unwraps = self._text.startswith("\n")
            self._text = self._text.removeprefix("\n")
        if over and self._unwraps:
            self._text = self._text.removesuffix("\n")
        if self._streams:
            return self._stream(begins, over)
        return self._whole() if over else ""

    def _stream(self, begins: bool, over: bool) -> str:
        keep = int(self._unwraps and not over and self._text.endswith("\n"))
        cut = len(self._text) - keep
        text, self._text = self._text[:cut], self._text[cut:]
        return ('"' if begins else "") + quoted(text)[1:-1] + ('"' if over else "")

    def _whole(self) -> str:
        raw = unmarked(self._text)
        if self._style is ValueStyle.CDATA:
            if block := CDATA.fullmatch(raw):
                return quoted(block[1])
            raw = raw.strip()
        literal = self._style is ValueStyle.LITERAL and self._types is None
        if self._kind is not None or literal:
            return json_literal(raw)
        return json_value(raw, self._types, self._words)


def quoted(text: str) -> str:
    return json.dumps(unmarked(text), ensure_ascii=False)
