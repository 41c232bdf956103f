"""Stop strings: cut the text exactly before the first one, however it arrives in pieces.

The match that ends first wins; of two that end together, the longer. That rule does not depend
on where the pieces were cut, and one automaton per stop string keeps the work linear. Held back
is only what may still become a stop string.
"""

from collections.abc import Iterable


class StopMatcher:
    def __init__(self, stops: Iterable[str]) -> None:
        self._automata = [_Automaton(stop) for stop in dict.fromkeys(stops) if stop]
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The text that is safe to show; after a match, nothing more."""
        if self.matched is not None or not text:
            return ""
        if not self._automata:
            return text
        for position, char in enumerate(text):
            hit = self._advance(char)
            if hit is not None:
                return self._cut(text[: position + 1], hit)
        return self._release(text)

    def flush(self) -> str:
        """The rest, once no more text will come."""
        rest, self._held = self._held, ""
        return rest

    def _advance(self, char: str) -> str | None:
        hits = [a.pattern for a in self._automata if a.advance(char)]
        return max(hits, key=len, default=None)

    def _cut(self, text: str, hit: str) -> str:
        self.matched = hit
        text, self._held = self._held + text, ""
        return text[: -len(hit)]

    def _release(self, text: str) -> str:
        text = self._held + text
        keep = max(a.matched for a in self._automata)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


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
