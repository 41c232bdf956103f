"""Prompts made here, of a wanted length in tokens, the same on every machine."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

CountTokens = Callable[[str], int]

_SUBJECTS = ("The harbour", "A miller", "The old bridge", "Our neighbour", "The survey", "A ferry")
_VERBS = ("keeps", "measures", "repaired", "forgot", "sells", "remembers", "counted", "hides")
_OBJECTS = ("the tide tables", "a box of letters", "three lanterns", "the north wall", "wool")
_ENDS = ("in spring", "before the storm", "for a small fee", "at dusk", "without a word")


def prose(num_sentences: int, seed: int) -> str:
    """Plain sentences, numbered so that no two texts share a prefix."""
    choice = random.Random(seed)
    return " ".join(
        f"{choice.choice(_SUBJECTS)} {choice.choice(_VERBS)} {choice.choice(_OBJECTS)} "
        f"{choice.choice(_ENDS)}, note {choice.randrange(10**6)}."
        for _ in range(num_sentences)
    )


def prose_of(num_tokens: int, count: CountTokens, seed: int) -> str:
    """Prose of at most `num_tokens`, and close to it."""
    return _fitted(lambda size: prose(size, seed), num_tokens, count)


def payload(num_tokens: int, count: CountTokens) -> str:
    """A JSON document, as a tool would return it, of at most `num_tokens` and close to it."""
    return _fitted(_records, num_tokens, count)


def passkey(num_tokens: int, count: CountTokens, depth: float, key: int) -> str:
    """A text that hides `key` at `depth` (0 = start, 1 = end), and the question for it."""
    needle = f" The pass key is {key}. Remember it. "
    question = " What is the pass key? Answer with the number only."
    room = num_tokens - count(needle + question)
    sentences = prose_of(room, count, key).split(". ")
    at = int(depth * len(sentences))
    before, after = ". ".join(sentences[:at]), ". ".join(sentences[at:])
    return f"{before}.{needle}{after}{question}"


def _records(size: int) -> str:
    choice = random.Random(5537)
    records = [
        {"id": i, "name": f"item {choice.randrange(10**5)}", "open": choice.random() < 0.5}
        for i in range(size)
    ]
    return json.dumps({"records": records}, indent=1)


def _fitted(make: Callable[[int], str], num_tokens: int, count: CountTokens) -> str:
    """The longest `make(size)` within `num_tokens`, found by two measurements and a walk."""
    per_unit = (count(make(64)) - count(make(32))) / 32
    size = max(1, int(num_tokens / per_unit))
    while size > 1 and count(make(size)) > num_tokens:
        size -= max(1, size // 50)
    return make(size)
