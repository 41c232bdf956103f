"""Promises of the regexes that stand for texts in a call."""

import random
import re

import pytest

from swiftlm_engine.grammar.raw_strings import not_beginning, without

TEXTS = ["</param>", "\n</function>", "<escape>", "#", "]<]x[>["]


def random_texts(text: str) -> list[str]:
    dice = random.Random(3)
    pieces = [text[:n] for n in range(len(text) + 1)] + [text[n:] for n in range(len(text))]
    return ["".join(dice.choices([*pieces, "<", "x"], k=dice.randrange(6))) for _ in range(2000)]


@pytest.mark.parametrize("lacked", TEXTS)
def test_a_text_without_another_is_told(lacked: str) -> None:
    terminal = without("/(?s:.*)/", [lacked])
    for text in random_texts(lacked):
        parts = terminal.split(" & ", 1)[1]
        negated = parts.startswith("~")
        found = re.fullmatch(parts.lstrip("~")[1:-1].replace("\\/", "/"), text) is not None
        assert not found or negated or lacked not in text, text
        if lacked[0] not in lacked[1:]:
            assert (found != negated) == (lacked not in text), text


@pytest.mark.parametrize("begun", TEXTS)
def test_a_text_that_does_not_begin_with_another_is_told(begun: str) -> None:
    body = not_beginning(begun)[1:-1].replace("\\/", "/")
    for text in random_texts(begun):
        assert (re.fullmatch(body, text) is not None) != text.startswith(begun), text
