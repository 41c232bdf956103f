"""A JSON object as a model writes it, character by character, to JSON that parses.

Mended on the way: backslashes that escape nothing (a regex `\\d`), raw line breaks in strings,
single and typographic quotes, Python's True, False and None, a comma before a closing bracket; and
where calls are read (`lenient`), words and keys without quotes. What cannot be mended fails at the
character that proves it; nothing is closed on the model's behalf, but see `completion`.
"""

import json
import re
from dataclasses import dataclass
from enum import Enum, auto

from swiftlm_engine.text.markers import MARK

NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
PLAIN = re.compile(r"[^\\\"'\u201d\x00-\x1f]+")
WORDS = {"true": "true", "false": "false", "null": "null"}
WORDS |= {"True": "true", "False": "false", "None": "null"}
MAX_DEPTH = 128
MAX_WORD = 400  # a number may be long, an unquoted sentence is no JSON
SPACE = " \t\r\n"
HEX = frozenset("0123456789abcdefABCDEF")
ESCAPABLE = frozenset('"\\/bfnrt')
QUOTES = {'"': '"', "'": "'", "\u201c": "\u201d"}
BARE_KEY = re.compile(r"[A-Za-z_$][\w$.-]*")


@dataclass(frozen=True, slots=True)
class Segment:
    """Mended text; `key` names the member of the outer object whose value it belongs to."""

    key: str | None
    text: str


class _JsonExpect(Enum):
    OBJECT = auto()
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()


class JsonStream:
    """Feed it text until `done` or `failed`; `rest` is what came after the object.

    The mark of a control token outside a string is no JSON: the model has ended what it wrote."""

    def __init__(self, lenient: bool = False) -> None:
        self._lenient = lenient
        self.done = False
        self.failed = False
        self.rest = ""
        self.finished_keys: set[str] = set()  # members of the outer object that are complete
        self._expect = _JsonExpect.OBJECT
        self._closers: list[str] = []
        self._key: str | None = None
        self._next_key: str | None = None  # of the value that is still to begin
        self._quote = ""  # the quote that ends the string we are in
        self._escape: str | None = None  # a backslash and what followed it so far
        self._word = ""
        self._comma = ""  # a comma and space that may stand before a closing bracket
        self._key_text = ""
        self._segments: list[Segment] = []
        self._pending: list[str] = []

    def feed(self, text: str) -> list[Segment]:
        position = 0
        while position < len(text) and not self.done and not self.failed:
            position = self._step(text, position)
        self.rest = text[position:]
        self._cut_segment()
        segments, self._segments = self._segments, []
        return segments

    def end(self) -> list[Segment]:
        """The text is over: a number or a word that may have gone on does not."""
        if self._word and not (self.done or self.failed):
            self._word_over()
        return self.feed("")

    def _step(self, text: str, position: int) -> int:
        """One character further, or past all that is plain in a string."""
        if text[position] == MARK and not self._quote:
            if self._word:
                self._word_over()
            self.failed = not self.done
            return position
        if not self._quote:
            self._outside(text[position])
            return position + 1
        if self._escape is None and (run := PLAIN.match(text, position)):
            self._write_string(run[0])
            return run.end()
        self._in_string(text[position])
        return position + 1

    # -- strings

    def _in_string(self, char: str) -> None:
        if self._escape is not None:
            self._in_escape(char)
        elif char == "\\":
            self._escape = ""
        elif char == self._quote:
            self._quote = ""
            self._write('"')
            self._string_over()
        else:
            self._write_char(char)

    def _in_escape(self, char: str) -> None:
        escape = self._escape or ""
        if escape:  # \u and hex digits
            self._in_unicode_escape(escape, char)
        elif char == "u":
            self._escape = "u"
        else:
            self._escape = None
            if char in ESCAPABLE:
                self._write_string("\\" + char)
            elif char == "'":
                self._write_string(char)
            else:
                self._write_string("\\\\")
                self._write_char(char)

    def _in_unicode_escape(self, escape: str, char: str) -> None:
        if char in HEX:
            self._escape = escape + char
            if len(self._escape) == 5:
                self._write_string("\\" + self._escape)
                self._escape = None
        else:
            self._escape = None
            self._write_string("\\\\" + escape)
            self._in_string(char)

    def _write_char(self, char: str) -> None:
        """A plain character of a string, escaped where JSON wants it."""
        self._write_string(json.dumps(char)[1:-1] if char < " " or char == '"' else char)

    def _write_string(self, text: str) -> None:
        if self._expect is _JsonExpect.COLON:
            self._key_text += text
        self._write(text)

    def _string_over(self) -> None:
        if self._expect is not _JsonExpect.COLON:
            self._value_over()

    # -- structure

    def _outside(self, char: str) -> None:
        if self._word:
            if self._word_goes_on(char):
                self._word += char
                self.failed = len(self._word) > MAX_WORD
                return
            self._word_over()
            if self.failed:
                return
        if char in SPACE:
            self._write_space(char)
        elif char in QUOTES:
            self._open_string(char)
        elif char in "{[":
            self._open(char)
        elif char in "}]":
            self._close(char)
        elif char == ",":
            self._take_comma()
        elif char == ":":
            self._take_colon()
        elif self._expect in (_JsonExpect.VALUE, _JsonExpect.VALUE_OR_END):
            self._begin_value()
            self._word = char
        elif self._lenient and self._expects_key and BARE_KEY.match(char):
            self._word = char
        else:
            self.failed = True

    @property
    def _expects_key(self) -> bool:
        return self._expect in (_JsonExpect.KEY, _JsonExpect.KEY_OR_END)

    def _word_goes_on(self, char: str) -> bool:
        if char not in SPACE and char not in ",:]}":
            return True
        if not self._lenient or self._expects_key or char in ",]}\n":
            return False
        # A date, a time, some words: what is no literal ends where the value must.
        return char == ":" or _literal(self._word) is None

    def _open_string(self, quote: str) -> None:
        if self._expect in (_JsonExpect.KEY, _JsonExpect.KEY_OR_END):
            self._write_comma()
            self._expect = _JsonExpect.COLON
            self._key_text = ""
        elif self._expect in (_JsonExpect.VALUE, _JsonExpect.VALUE_OR_END):
            self._begin_value()
            self._expect = _JsonExpect.COMMA_OR_END
        else:
            self.failed = True
            return
        self._quote = QUOTES[quote]
        self._write('"')

    def _open(self, char: str) -> None:
        allowed = (_JsonExpect.VALUE, _JsonExpect.VALUE_OR_END)
        fits = self._expect in allowed or (self._expect is _JsonExpect.OBJECT and char == "{")
        if not fits or len(self._closers) >= MAX_DEPTH:
            self.failed = True
            return
        self._begin_value()
        self._write(char)
        self._closers.append("}" if char == "{" else "]")
        self._expect = _JsonExpect.KEY_OR_END if char == "{" else _JsonExpect.VALUE_OR_END

    def _close(self, char: str) -> None:
        endings = (_JsonExpect.KEY_OR_END, _JsonExpect.VALUE_OR_END, _JsonExpect.COMMA_OR_END)
        after_comma = bool(self._comma) and self._expect in (_JsonExpect.KEY, _JsonExpect.VALUE)
        if not self._closers or self._closers[-1] != char:
            self.failed = True
        elif self._expect in endings or after_comma:
            self._comma = ""
            self._closers.pop()
            self._write(char)
            self.done = not self._closers
            self._value_over()
        else:
            self.failed = True

    def _take_comma(self) -> None:
        if self._expect is not _JsonExpect.COMMA_OR_END:
            self.failed = True
            return
        self._comma = ","
        self._expect = _JsonExpect.KEY if self._closers[-1] == "}" else _JsonExpect.VALUE

    def _take_colon(self) -> None:
        if self._expect is not _JsonExpect.COLON:
            self.failed = True
            return
        self._write(":")
        self._expect = _JsonExpect.VALUE
        if len(self._closers) == 1:
            key = str(json.loads(f'"{self._key_text}"'))
            self._next_key = key if key not in self.finished_keys else None  # the first counts

    def _word_over(self) -> None:
        word, self._word = self._word.strip(), ""
        if self._expects_key:
            self._key_over(word)
            return
        mended = _literal(word)
        if mended is None and self._lenient:
            mended = json.dumps(word, ensure_ascii=False)
        if mended is None:
            self.failed = True
            return
        self._write(mended)
        self._value_over()

    def _key_over(self, word: str) -> None:
        """A key without its quotes."""
        if not BARE_KEY.fullmatch(word):
            self.failed = True
            return
        self._write_comma()
        self._key_text = word
        self._write(f'"{word}"')
        self._expect = _JsonExpect.COLON

    def _value_over(self) -> None:
        self._expect = _JsonExpect.COMMA_OR_END
        if len(self._closers) == 1 and self._key is not None:
            self._cut_segment()
            self.finished_keys.add(self._key)
            self._key = None

    # -- output

    def _write_space(self, char: str) -> None:
        if self._comma:
            self._comma += char
        elif self._closers:
            self._write(char)

    def _begin_value(self) -> None:
        self._write_comma()
        if self._next_key is not None:
            self._cut_segment()
            self._key, self._next_key = self._next_key, None

    def _write_comma(self) -> None:
        if self._comma:
            comma, self._comma = self._comma, ""
            self._write(comma)

    def _write(self, text: str) -> None:
        self._pending.append(text)

    def _cut_segment(self) -> None:
        if self._pending:
            self._segments.append(Segment(self._key, "".join(self._pending)))
            self._pending = []


def _literal(word: str) -> str | None:
    return WORDS.get(word, word if NUMBER.fullmatch(word) else None)


_STRING = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?$)', re.DOTALL)
_UNICODE = re.compile(r"(?<!\\)(?:\\\\)*\\u([0-9a-fA-F]{0,3})$")


def completion(text: str) -> str | None:
    """What makes valid JSON of an object that was left off; None where nothing does."""
    if not text:
        return "{}"
    closers: list[str] = []
    last, is_key, at, ending = "", False, 0, ""
    while at < len(text):
        char = text[at]
        if char == '"' and (match := _STRING.match(text, at)):
            is_key = last in ("{", ",") and closers[-1:] == ["}"]
            ending = "" if _is_closed(match[0]) else _string_end(match[0])
            last, at = '"', match.end()
            continue
        if char in "{[":
            closers.append("}" if char == "{" else "]")
        elif char in "}]" and closers:
            closers.pop()
        if char not in SPACE:
            last, is_key = char, False
        at += 1
    value = ": null" if is_key else " null" if last == ":" else ""
    if last == ",":
        value = "null" if closers[-1:] == ["]"] else '"": null'
    found = f"{ending}{value}{''.join(reversed(closers))}"
    try:
        json.loads(text + found)
    except (ValueError, RecursionError):
        return None
    return found


def _is_closed(string: str) -> bool:
    body = string[1:-1]
    escaped = (len(body) - len(body.rstrip("\\"))) % 2 == 1
    return len(string) > 1 and string.endswith('"') and not escaped


def _string_end(string: str) -> str:
    """The rest of a string, past an escape that was begun."""
    if match := _UNICODE.search(string):
        return "0" * (4 - len(match[1])) + '"'
    backslashes = len(string) - len(string.rstrip("\\"))
    return '\\"' if backslashes % 2 else '"'


def mend_object(text: str) -> str | None:
    """The JSON text of the one object that `text` holds, or None."""
    stream = JsonStream()
    segments = stream.feed(text)
    if not stream.done or stream.rest.strip():
        return None
    return "".join(segment.text for segment in segments)
