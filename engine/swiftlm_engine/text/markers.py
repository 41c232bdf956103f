"""Markers in text that arrives in pieces, and how control tokens differ from their spelling.

A model that writes about `<|call|>` and a model that calls produce the same text; only the token
ids differ. So a control token that a parser waits for enters the text behind `MARK`, a Unicode
noncharacter, and its spelling without it. Every other part of this package works on plain strings.
"""

from __future__ import annotations

from collections.abc import Iterable

MARK = "\uffff"


def marked(text: str) -> str:
    """The text of a control token as parsers look for it."""
    return MARK + text


def unmarked(text: str) -> str:
    """The text as a person would read it."""
    return text.replace(MARK, "") if MARK in text else text


def first_marker(text: str, markers: Iterable[str], start: int = 0) -> tuple[int, str] | None:
    """Where the earliest marker stands; of two at one place, the longer."""
    found = [(text.find(m, start), -len(m), m) for m in markers]
    found = [f for f in found if f[0] >= 0]
    if not found:
        return None
    position, _, marker = min(found)
    return position, marker


def held_length(text: str, markers: Iterable[str]) -> int:
    """How much of the end of the text may still become a marker."""
    longest = 0
    for marker in markers:
        for length in range(min(len(marker) - 1, len(text)), longest, -1):
            if text.endswith(marker[:length]):
                longest = length
                break
    return longest
