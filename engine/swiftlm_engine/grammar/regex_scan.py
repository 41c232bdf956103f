"""Reading a regex as far as its groups."""

from __future__ import annotations

from collections.abc import Iterator


def structural(pattern: str, at: int = 0) -> Iterator[tuple[int, str]]:
    """The place of each character from `at` on that is neither escaped nor of a class, and it."""
    in_class = False
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        else:
            yield at, char
        at += 1
