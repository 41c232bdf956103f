"""Calls written as Python writes them, `[f(a=1, b="x"), g()]`: LFM2 and Llama 4.

Names and keys may be what no Python name is (`get-weather`, `user-id`, `from`), values are Python's
or JSON's. A key that cannot stand before `=` comes in a dictionary: `f(**{"a=b": 1})`.
"""

import ast
import json
import re
from collections.abc import Collection

from swiftlm_engine.text.emitter import Emitter
from swiftlm_engine.text.markers import unmarked
from swiftlm_engine.text.tools.json_stream import NUMBER, WORDS

# An opening bracket and the name of a function, or the beginning of that.
BEGINS_LIST = re.compile(r"\[\s*(?:[A-Za-z0-9_][\w.:/-]*\s*(?:\(|$)|$)")
NAME = re.compile(r"[^\s()\[\]{}\"'=,*]+")
BARE_KEY = re.compile(r"[^\s()\[\]{}\"'=,*]+")
KEY = re.compile(r"([^()\[\]{}\"'=,*]+?)\s*=\s*")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'', re.DOTALL)
BARE_VALUE = re.compile(r"[^,()\[\]{}\"']+")
SPACE = re.compile(r"\s*")
CLOSERS = {"[": "]", "(": ")", "{": "}"}
MAX_DEPTH = 64


class PythonicReader:
    """Calls between markers. `end` empty: they end with the text. `rows`: a call in each line,
    without brackets."""

    def __init__(self, emitter: Emitter, start: str, end: str, rows: bool = False) -> None:
        self._emitter = emitter
        self._rows = rows
        self._start = start
        self._end = end
        self._held = ""

    def feed(self, text: str) -> str | None:
        searched = max(0, len(self._held) - len(self._end))
        self._held += text
        if not self._end or (position := self._held.find(self._end, searched)) < 0:
            return None
        body, rest = self._held[:position], self._held[position + len(self._end) :]
        if not emit_calls(self._emitter, body, rows=self._rows):
            self._emitter.reject_call(self._start + body + self._end)
        return rest

    def finish(self, cut: bool) -> None:
        if cut and self._end:
            return
        if not emit_calls(self._emitter, self._held, rows=self._rows) and not cut:
            self._emitter.reject_call(self._start + self._held)


class BareListReader:
    """Calls in square brackets with nothing around them: only those of known tools count."""

    def __init__(self, emitter: Emitter, known: Collection[str]) -> None:
        self._emitter = emitter
        self._known = known
        self._held = ""
        self._scan = _BracketScan()

    def feed(self, text: str) -> str | None:
        self._held += text
        if BEGINS_LIST.match(self._held) is None:
            return self._reject()
        end = self._scan.feed(text)
        if end is None:
            return None
        rest = text[end:]
        body = self._held[: len(self._held) - len(rest)]
        if emit_calls(self._emitter, body, self._known):
            return rest
        return self._reject()

    def _reject(self) -> str:
        """The bracket is text; what follows it is read again."""
        self._emitter.reject_call(self._held[0])
        return self._held[1:]

    def finish(self, cut: bool) -> None:
        if not cut:
            self._emitter.reject_call(self._held)


class _BracketScan:
    """Finds the bracket that closes the list, outside Python's strings."""

    def __init__(self) -> None:
        self._depth = 0
        self._quote = ""
        self._escaped = False

    def feed(self, text: str) -> int | None:
        for position, char in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._quote:
                self._escaped = char == "\\"
                self._quote = "" if char == self._quote else self._quote
            elif char in "\"'":
                self._quote = char
            elif char in "[({":
                self._depth += 1
            elif char in "])}":
                self._depth -= 1
                if not self._depth:
                    return position + 1
        return None


def emit_calls(
    emitter: Emitter, body: str, only: Collection[str] | None = None, rows: bool = False
) -> bool:
    """Whether the body was calls; then they are emitted."""
    try:
        parser = _Parser(unmarked(body).strip())
        calls = parser.rows() if rows else parser.calls()
    except (ValueError, RecursionError):
        return False
    if not calls or (only is not None and any(name not in only for name, _ in calls)):
        return False
    for name, arguments in calls:
        emitter.open_call(name)
        emitter.arguments(arguments)
        emitter.close_call()
    return True


class _Parser:
    """The text of calls to names and JSON texts. Raises ValueError on anything else."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def calls(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        self._take("[")
        while not self._comes("]"):
            found.append(self._call())
            if not self._comes(","):
                self._take("]")
                break
        if self._at < len(self._text):
            raise ValueError("text behind the calls")
        return found

    def rows(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        while self._at < len(self._text):
            found.append(self._call())
            self._skip()
        return found

    def _call(self) -> tuple[str, str]:
        name = self._match(NAME)
        self._take("(")
        members: dict[str, str] = {}
        while not self._comes(")"):
            if self._comes("**"):
                self._take("{")
                members |= self._members("}")
            else:
                key = self._match(KEY, 1)
                members.setdefault(key, self._value(bare=True))
            if not self._comes(","):
                self._take(")")
                break
        return name, _object(members)

    def _value(self, bare: bool = False) -> str:
        """As JSON text; `bare`: what is no literal is a string without its quotes."""
        self._skip()
        char = self._text[self._at : self._at + 1]
        if char in ('"', "'"):
            return json.dumps(_unquoted(self._match(STRING)), ensure_ascii=False)
        if char in CLOSERS and char:
            return self._container(char)
        word = self._match(BARE_VALUE).strip()
        if word in WORDS:
            return WORDS[word]
        if NUMBER.fullmatch(word):
            return word
        if not bare or not word:
            raise ValueError(f"no value: {word}")
        return json.dumps(word, ensure_ascii=False)

    def _container(self, opener: str) -> str:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError("nested too deep")
        self._take(opener)
        if opener == "{":
            text = _object(self._members("}"))
        else:
            text = f"[{', '.join(self._items(CLOSERS[opener]))}]"
        self._depth -= 1
        return text

    def _items(self, closer: str) -> list[str]:
        items: list[str] = []
        while not self._comes(closer):
            items.append(self._value())
            if not self._comes(","):
                self._take(closer)
                break
        return items

    def _members(self, closer: str) -> dict[str, str]:
        members: dict[str, str] = {}
        while not self._comes(closer):
            self._skip()
            key = _unquoted(self._match(STRING))
            self._take(":")
            members[key] = self._value()
            if not self._comes(","):
                self._take(closer)
                break
        return members

    # -- the text

    def _skip(self) -> None:
        found = SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _comes(self, token: str) -> bool:
        """Whether the token comes next; then it is taken."""
        self._skip()
        if not self._text.startswith(token, self._at):
            return False
        self._at += len(token)
        self._skip()
        return True

    def _take(self, token: str) -> None:
        if not self._comes(token):
            raise ValueError(f"{token} is missing")

    def _match(self, pattern: re.Pattern[str], group: int = 0) -> str:
        self._skip()
        found = pattern.match(self._text, self._at)
        if found is None:
            raise ValueError("not a call")
        self._at = found.end()
        return found[group].strip() if group else found[0]


def _object(members: dict[str, str]) -> str:
    pairs = (f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in members.items())
    return f"{{{', '.join(pairs)}}}"


def _unquoted(token: str) -> str:
    """A string's text, by JSON's escapes where its quotes are JSON's, else by Python's."""
    if token[0] == '"':
        try:
            return str(json.loads(token, strict=False))
        except ValueError:
            pass
    try:
        return str(ast.literal_eval(token.replace("\n", "\\n").replace("\r", "\\r")))
    except (ValueError, SyntaxError):
        return token[1:-1]
