"""Raw strings: a schema's rules for a string that stands in a call without quotes, as regexes.

The bodies are terminals of llguidance's Lark: regexes between slashes, joined by `&`, `|` and `~`.
"""

import json
import re
from collections.abc import Iterable, Sequence

from swiftlm_engine.grammar.lark import SAME_PATTERNS
from swiftlm_engine.grammar.regex_scan import structural
from swiftlm_engine.text.tools.schema import Alternative, CannotHold

MIN_TELLING = 8  # shorter ends of tags are found in ordinary text
ANY_TEXT = "/(?s:.*)/"
_ESCAPE_OR_SLASH = re.compile(r"\\.|/", re.DOTALL)
_DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_GROUP = r"[0-9A-Fa-f]{1,4}"
# Formats without an entry say nothing here, as JSON Schema has it for unknown ones.
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,8}}",
    "email": rf"[A-Za-z0-9_%+-]+(\.[A-Za-z0-9_%+-]+){{0,8}}@{_LABEL}(\.{_LABEL}){{1,8}}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "ipv6": f"({_GROUP}:){{7}}{_GROUP}|({_GROUP}:){{1,6}}:{_GROUP}|::({_GROUP})?",
    "uri": r"[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9\-._~:\/?#@!$&'()*+,;=%]+",
    "duration": r"P([0-9]+Y)?([0-9]+M)?[0-9]+D|PT([0-9]+H)?([0-9]+M)?[0-9]+S|P[0-9]+W",
}


def terminal_of(alternative: Alternative, trimmed: bool = False) -> str:
    """A terminal's body for exactly the strings of the alternative. Raises CannotHold.

    `trimmed`: only those with no white space at an end.
    """
    alternative.check()
    if alternative.values is not None:
        return either(json.dumps(value, ensure_ascii=False) for value in alternative.values)
    bodies = []
    for rule in alternative.rules:
        low, high = rule.get("minLength"), rule.get("maxLength")
        if isinstance(low, int) or isinstance(high, int):
            bodies.append(_length(low, high, trimmed))
        if isinstance(pattern := rule.get("pattern"), str):
            bodies.append(searched(pattern))
        if (written := FORMATS.get(str(rule.get("format")))) is not None:
            bodies.append(f"/{written}/")
    if trimmed and not any("minLength" in r or "maxLength" in r for r in alternative.rules):
        bodies.append(_length(0, None, trimmed))
    return " & ".join(bodies) if bodies else ANY_TEXT


def either(bodies: Iterable[str]) -> str:
    return " | ".join(f"({body})" for body in bodies)


def without(body: str, texts: Sequence[str]) -> str:
    """The body's texts that hold none of these."""
    texts = [_telling(text) for text in texts]
    recurs = [text for text in texts if text[0] in text[1:]]
    said = [f"/{_lacking(text)}/" for text in texts if text not in recurs]
    return " & ".join([f"({body})", *said, *(f"~/(?s:.*){as_regex(t)}(?s:.*)/" for t in recurs)])


def _telling(text: str) -> str:
    """The text, or as much of its end as begins with a character that does not come again: a
    body without that end is without the whole."""
    at = next(at for at, char in enumerate(text) if char not in text[at + 1 :])
    return text[at:] if len(text) - at >= MIN_TELLING else text


def _lacking(text: str) -> str:
    """A regex for every text without this one inside.

    Said without a complement: beside a bound on the length, whether anything is left of one takes
    the compiler a search through all the lengths.
    """
    first, later = text[0], text[1:]  # the first character does not come again
    free = rf"[^{as_regex(first)}]*"
    if not later:
        return free
    return f"{free}(?:{as_regex(first)}{_parting(later, as_regex(first), free)})*"


def not_beginning(text: str) -> str:
    """A terminal's body for every text that does not begin with this one."""
    return f"/{_parting(text, '', '(?s:.*)')}/"


def _parting(text: str, also_not: str, behind: str) -> str:
    """A regex for what follows, a part of the text at most before it goes another way."""
    found = ""
    for char in reversed(text):
        longer = f"|{as_regex(char)}{found}" if found else ""
        found = f"(?:[^{also_not}{as_regex(char)}]{behind}{longer})?"
    return found


def as_regex(text: str) -> str:
    """The text itself, inside the slashes of a terminal."""
    return slashed(re.escape(text).replace("\n", "n"))


def searched(pattern: str) -> str:
    """A terminal's body for every text in which the pattern is found, as JSON Schema means it."""
    return either(map(_anchored, _branches(SAME_PATTERNS.get(pattern, pattern))))


def slashed(pattern: str) -> str:
    """A slash would end the terminal; what is escaped stays as it is."""
    return _ESCAPE_OR_SLASH.sub(lambda m: m[0] if len(m[0]) > 1 else r"\/", pattern)


def _anchored(branch: str) -> str:
    start = "" if branch.startswith("^") else "(?s:.*)"
    ends = branch.endswith("$") and not _is_escaped(branch)
    inner = branch.removeprefix("^")
    inner = inner[:-1] if ends and inner else inner
    return f"/{start}(?:{slashed(inner)}){'' if ends else '(?s:.*)'}/"


def _is_escaped(text: str) -> bool:
    """The last character stands behind a backslash."""
    before = text[:-1]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


def _branches(pattern: str) -> list[str]:
    """The alternatives that stand outside of every group."""
    branches, depth, begin = [], 0, 0
    for place, char in structural(pattern):
        if char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            branches.append(pattern[begin:place])
            begin = place + 1
    return [*branches, pattern[begin:]]


def _length(low: object, high: object, trimmed: bool) -> str:
    least = low if isinstance(low, int) else 0
    most = str(high) if isinstance(high, int) else ""
    if isinstance(high, int) and high < least:
        raise CannotHold("'maxLength' is below 'minLength'")
    if not trimmed:
        return f"/(?s:.{{{least},{most}}})/"
    if most in ("0", "1"):
        return rf"/\S{{{least},{most}}}/"
    inner = f"{{{max(0, least - 2)},{int(most) - 2 if most else ''}}}"
    longer = rf"\S(?s:.{inner})\S"
    short = r"|\S?" if not least else r"|\S" if least == 1 else ""
    return f"/{longer}{short}/"
