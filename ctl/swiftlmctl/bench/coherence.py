"""Whether an answer is language at all. Fast nonsense has no speed worth printing."""

from __future__ import annotations

import json
from collections import Counter

_MIN_WORDS = 16
_DISTINCT_SHARE = 0.4  # prose lies above 0.9; a text that is one part five times is at 0.2
_GRAM = 4


def complaint(text: str) -> str:
    """What is wrong with an answer, in a few words; empty when nothing is.

    Loops are found by how few of a text's 4-grams of words are distinct.
    """
    if not text.strip():
        return "nothing but whitespace" if text else "no text"
    if "\N{REPLACEMENT CHARACTER}" in text:
        return "invalid UTF-8"
    if text.count("\n\n\n\n") or len(text) - len(text.replace(" ", "")) > 0.7 * len(text):
        return "mostly whitespace"
    words = text.split()
    if len(words) < _MIN_WORDS:
        return "one character again and again" if _same_letters(text) else ""
    grams = Counter(zip(*(words[i:] for i in range(_GRAM)), strict=False))
    if len(grams) < _DISTINCT_SHARE * grams.total():
        return f"repeats '{' '.join(grams.most_common(1)[0][0])}'"
    return ""


def _same_letters(text: str) -> bool:
    letters = [c for c in text if not c.isspace()]
    return len(letters) >= _MIN_WORDS and len(set(letters)) <= 2


def is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
