"""Stop strings: cut the text exactly before the first one, however it arrives in pieces.

The match that ends first wins; of two that end together, the longer. That rule does not depend
on where the pieces were cut, and one automaton per stop string keeps the work linear. Held back
is only what may still become a stop string.
"""

from collections.abc import Iterable

from swiftlm_engine.text.markers import MARK


class StopMatcher:
    """Marks of control tokens (see markers.py) are no part of what is compared."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._automata = [_Automaton(stop) for stop in dict.fromkeys(stops) if stop]
        self._held = ""
        self.matched: str | None = None

    @property
    def unshown(self) -> str:
        """What was pushed last and not given back: it may become a stop string. After a match,
        the stop string and all behind it."""
        return self._held

    def push(self, text: str) -> str:
        """The text that is safe to show; after a match, nothing more."""
        if self.matched is not None:
            self._held += text
            return ""
        if not self._automata or not text:
            return text
        for position, char in enumerate(text):
            hit = self._advance(char) if char != MARK else None
            if hit is not None:
                return self._cut(text[: position + 1], hit, text[position + 1 :])
        return self._release(text)

    def flush(self) -> str:
        """The rest, where nothing that follows may complete a stop string with it."""
        if self.matched is not None:
            return ""
        rest, self._held = self._held, ""
        for automaton in self._automata:
            automaton.matched = 0
        return rest

    def _advance(self, char: str) -> str | None:
        hits = [a.pattern for a in self._automata if a.advance(char)]
        return max(hits, key=len, default=None)

    def _cut(self, text: str, hit: str, behind: str) -> str:
        self.matched = hit
        text = self._held + text
        at = _before_last(text, len(hit))
        self._held = text[at:] + behind
        return text[:at]

    def _release(self, text: str) -> str:
        text = self._held + text
        at = _before_last(text, max(a.matched for a in self._automata))
        self._held = text[at:]
        return text[:at]


def _before_last(text: str, count: int) -> int:
    """Where the last `count` characters begin, marks not counted."""
    at = len(text)
    while count:
        at -= 1
        count -= text[at] != MARK
    while at and text[at - 1] == MARK and at < len(text):
        at -= 1
    return at


class _Automaton:
    """Knuth-Morris-Pratt: `matched` chars of the pattern are what the text ends with."""

    __slots__ = ("_fallback", "matched", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.matched = 0
        self._fallback = _fallback_table(pattern)

    def advance(self, char: str) -> bool:
        while self.matched and self.pattern[self.matched] != char:
            self.matched = self._fallback[self.matched - 1]
        if self.pattern[self.matched] == char:
            self.matched += 1
        return self.matched == len(self.pattern)


def _fallback_table(pattern: str) -> list[int]:
    table = [0] * len(pattern)
    length = 0
    for i in range(1, len(pattern)):
        while length and pattern[i] != pattern[length]:
            length = table[length - 1]
        if pattern[i] == pattern[length]:
            length += 1
        table[i] = length
    return table
