"""Looking for markers in text that arrives in pieces."""

from collections.abc import Iterable


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
