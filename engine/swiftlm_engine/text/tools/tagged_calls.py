"""Calls written as tags, an element per argument: Qwen's XML, GLM, MiniMax, DeepSeek's DSML, ...

Values stand raw between their tags and may hold text that looks like a tag. A closing tag counts
only where something follows that may follow it; a missing one is made up for by what can only
stand outside a value. Strings are passed on as they come, other values when they are complete.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from swiftlm_engine.text.emitter import Emitter
from swiftlm_engine.text.markers import MARK, first_marker, held_length, unmarked
from swiftlm_engine.text.tools.json_stream import JsonStream
from swiftlm_engine.text.tools.tagged_value import TaggedValue, ValueStyle, quoted
from swiftlm_engine.text.tools.values import Properties

MAX_TAG = 2000
NAME_ONLY = re.compile(r"[\w./:-]*\s*(?:<[^>]*)?")  # GLM's calls begin with the bare name


@dataclass(frozen=True, slots=True)
class TagSyntax:
    """The tags of a family. The patterns match at the start of a string.

    `call` has a group `name` (and `closed` for an empty call in one tag), `param` has `key`
    and may have `kind`, the type that the model itself names.
    """

    call: re.Pattern[str]
    call_close: str
    param: re.Pattern[str]
    param_start: str  # what every opening tag of an argument begins with
    param_close: str
    section_start: str = ""
    section_end: str = ""
    call_start: str = ""  # what every opening tag of a call begins with; empty for a bare name
    tag_end: str = ">"
    style: ValueStyle = ValueStyle.RAW
    json_open: re.Pattern[str] | None = None  # a tag that holds all arguments as JSON
    escaped: bool = False  # names and keys are XML attributes


class _TaggedAt(Enum):
    SECTION = auto()
    CALL = auto()
    VALUE = auto()
    JSON = auto()
    CLOSING = auto()  # the arguments were JSON and are complete
    SWALLOWING = auto()


class TaggedCallsReader:
    def __init__(
        self,
        emitter: Emitter,
        syntax: TagSyntax,
        properties_of: Callable[[str], Properties],
        start: str = "",
    ) -> None:
        self._emitter = emitter
        self._syntax = syntax
        self._properties_of = properties_of
        self._at = _TaggedAt.SECTION
        self._raw = start
        self._held = ""
        self._calls = 0
        self._keys: set[str] = set()
        self._properties = Properties({}, {})
        self._value = TaggedValue(None, None, syntax.style)
        self._json = JsonStream(lenient=True)
        self._last = False  # no more text will come
        self._new_value = partial(TaggedValue, None, None, syntax.style)
        self._value_at = 0  # where in `_raw` the value begins
        self._quoted_end = False  # a tag that would have ended it stood in a string of JSON
        self._trusts_quotes = True

    def feed(self, text: str) -> str | None:
        self._held += text
        steps = {
            _TaggedAt.SECTION: self._in_section,
            _TaggedAt.CALL: self._in_call,
            _TaggedAt.VALUE: self._read_value,
            _TaggedAt.JSON: self._read_json,
            _TaggedAt.CLOSING: self._find_close,
            _TaggedAt.SWALLOWING: self._swallow,
        }
        while True:
            before = self._at, len(self._held)
            rest = steps[self._at]()
            if rest is not None or before == (self._at, len(self._held)):
                return rest

    def finish(self, cut: bool) -> None:
        if cut:
            self._emitter.drop_call()
            return
        self._last = True
        if self._at is _TaggedAt.JSON:
            for segment in self._json.end():
                self._emitter.arguments(segment.text)
        rest = self.feed("")
        while rest is None and self._at is _TaggedAt.VALUE and self._quoted_end:
            rest = self._read_again()
        if rest is not None:
            self._emitter.content(rest)
            return
        over = self._at in (_TaggedAt.SWALLOWING, _TaggedAt.CLOSING) or (
            self._at is _TaggedAt.SECTION and self._calls
        )
        if not over:
            self._emitter.reject_call(self._raw + self._held)

    # -- between calls

    def _in_section(self) -> str | None:
        held = self._held.lstrip()
        end = self._syntax.section_end
        if end and held.startswith(end):
            if not self._calls:
                self._emitter.reject_call(self._raw + self._held[: -len(held)] + end)
            return held[len(end) :]
        match = self._syntax.call.match(held)
        if match is not None:
            self._open_call(match, len(self._held) - len(held) + match.end())
            return None
        if not self._last and (end.startswith(held) or self._may_begin_call(held)):
            return None
        if not self._calls:
            self._emitter.reject_call(self._raw)
        return self._held

    def _may_begin_call(self, held: str) -> bool:
        start = self._syntax.call_start
        if not start:
            return NAME_ONLY.fullmatch(held) is not None
        begun = held.startswith(start) and self._syntax.tag_end not in held[len(start) :]
        return start.startswith(held) or (begun and len(held) < MAX_TAG)

    def _open_call(self, match: re.Match[str], length: int) -> None:
        if self._calls:
            self._raw = ""
        self._take(length)
        self._keys = set()
        name = self._attribute(match["name"]).strip()
        self._properties = self._properties_of(name)
        self._emitter.open_call(name)
        if match.groupdict().get("closed"):
            self._close_call()
        else:
            self._at = _TaggedAt.CALL

    # -- between the arguments of a call

    def _in_call(self) -> str | None:
        syntax = self._syntax
        self._take(len(self._held) - len(self._held.lstrip()))
        held = self._held
        ends = [e for e in (syntax.call_close, syntax.section_end) if e]
        if not held:
            return None
        if held.startswith(tuple(ends)):
            if syntax.call_close != syntax.section_end and held.startswith(syntax.call_close):
                self._take(len(syntax.call_close))
            self._close_call()
        elif (match := syntax.param.match(held)) is not None:
            self._open_value(match)
        elif held[0] == "{" and not self._keys:
            self._open_json(0)
        elif syntax.json_open is not None and (match := syntax.json_open.match(held)):
            self._open_json(match.end())
        elif not self._may_go_on(held, [syntax.param_start, *ends]):
            return self._reject()
        return None

    def _may_go_on(self, held: str, openers: list[str]) -> bool:
        begun = any(held.startswith(o) or o.startswith(held) for o in openers)
        return not self._last and len(held) < MAX_TAG and begun

    def _open_json(self, length: int) -> None:
        self._take(length)
        self._json = JsonStream(lenient=True)
        self._at = _TaggedAt.JSON

    def _read_json(self) -> str | None:
        stream = self._json
        for segment in stream.feed(self._held):
            self._emitter.arguments(segment.text)
        over = stream.done or stream.failed
        self._take(len(self._held) - (len(stream.rest) if over else 0))
        if stream.failed:
            return self._reject()
        if stream.done:
            self._emitter.close_call()
            self._calls += 1
            self._at = _TaggedAt.CLOSING
        return None

    def _find_close(self) -> str | None:
        ends = [e for e in (self._syntax.call_close, self._syntax.section_end) if e]
        found = first_marker(self._held, ends)
        if found is not None:
            position, marker = found
            self._take(position + (len(marker) if marker == self._syntax.call_close else 0))
            self._at = _TaggedAt.SECTION
        return None

    def _close_call(self) -> None:
        self._emitter.arguments("}" if self._keys else "{}")
        self._emitter.close_call()
        self._calls += 1
        self._at = _TaggedAt.SECTION

    # -- one value

    def _open_value(self, match: re.Match[str]) -> None:
        key = self._attribute(match["key"])
        self._take(match.end())
        self._at = _TaggedAt.VALUE
        kind = match.groupdict().get("kind")
        types, words = self._properties.types(key), self._properties.words(key)
        self._new_value = partial(TaggedValue, types, kind, self._syntax.style, words)
        self._value = self._new_value()
        self._value_at = len(self._raw)
        self._quoted_end, self._trusts_quotes = False, True
        if key in self._keys:
            self._value.muted = True  # the first of two counts
            return
        self._emitter.arguments(("{" if not self._keys else ", ") + quoted(key) + ": ")
        self._keys.add(key)

    def _read_value(self) -> str | None:
        length, skip, over = self._value_end()
        self._emitter.arguments(self._value.push(self._held[:length], over))
        self._take(length + skip)
        if over:
            self._at = _TaggedAt.CALL
        return None

    def _read_again(self) -> str | None:
        """The value's quotes were not closed: its first end tag counts after all."""
        muted = self._value.muted
        self._held = self._raw[self._value_at :] + self._held
        self._raw = self._raw[: self._value_at]
        self._value = self._new_value()
        self._value.muted = muted
        self._quoted_end, self._trusts_quotes = False, False
        return self.feed("")

    def _value_end(self) -> tuple[int, int, bool]:
        """How much is value, how long its end tag is, and whether it is over."""
        enders = self._enders()
        quotes, read = self._value.quotes, 0
        position = 0
        while (found := first_marker(self._held, enders, position)) is not None:
            position, marker = found
            quotes.feed(self._held[read:position])
            read = position
            if quotes.are_open and self._trusts_quotes and MARK not in marker:
                self._quoted_end = True
                position += 1
                continue
            ends = self._ends_value(marker, position)
            if ends is None:
                return position, 0, False
            if ends and marker == self._syntax.param_close:
                return position, len(marker), True
            if ends:
                # The line break before a tag that closes for another goes with the value.
                return position + marker.startswith("\n"), 0, True
            position += 1
        return len(self._held) - held_length(self._held, enders), 0, False

    def _enders(self) -> tuple[str, ...]:
        syntax = self._syntax
        if syntax.style is ValueStyle.WRAPPED:
            return syntax.param_close, "\n" + syntax.call_close, "\n" + syntax.param_start
        return syntax.param_close, syntax.call_close

    def _ends_value(self, marker: str, position: int) -> bool | None:
        """None when only more text can tell."""
        syntax = self._syntax
        after = self._held[position + len(marker) :].lstrip()
        if marker == syntax.param_close:
            if after.startswith(syntax.param_start) and syntax.param_start[-1].isalpha():
                behind = after[len(syntax.param_start) :]
                return not behind[0].isalpha() if behind else self._last or None
            return self._follows(after, syntax.param_start, syntax.call_close, syntax.section_end)
        if marker.endswith(syntax.call_close):
            # The value was not closed; that is beyond doubt only where the call ends too.
            section_end = syntax.section_end if syntax.section_end != syntax.call_close else ""
            return self._follows(after, section_end, syntax.section_start, syntax.call_start)
        tag = self._held[position + 1 :]
        if syntax.param.match(tag):
            return True
        unfinished = syntax.tag_end not in tag and len(tag) < MAX_TAG
        return None if unfinished and not self._last else False

    def _follows(self, after: str, *expected: str) -> bool | None:
        if not after:
            return True if self._last else None
        known = tuple(e for e in expected if e)
        if after.startswith(known):
            return True
        return None if any(e.startswith(after) for e in known) and not self._last else False

    # -- failure

    def _reject(self) -> str | None:
        shown = self._emitter.call_is_shown
        self._emitter.reject_call(self._raw)
        if not shown:
            return self._held
        self._at = _TaggedAt.SWALLOWING
        return None

    def _swallow(self) -> str | None:
        """To the end of the section, past what is no text either."""
        end = self._syntax.section_end or self._syntax.call_close
        _, found, rest = self._held.partition(end)
        if found:
            return rest
        self._held = self._held[-len(end) :]
        return None

    def _attribute(self, text: str) -> str:
        text = unmarked(text)
        return text.replace("&quot;", '"').replace("&amp;", "&") if self._syntax.escaped else text

    def _take(self, length: int) -> None:
        self._raw += self._held[:length]
        self._held = self._held[length:]
