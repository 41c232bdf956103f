"""Help and the options' texts are plain English: none of the turns that readers stumbled over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any  # typer brings a click of its own

import typer.main

from swiftlmctl.main import build
from swiftlmd.config.settings import OPTIONS

STUMBLES = re.compile(r"; else\b|\bbeside\b|turn about|so many|\b(?:is|are) no \w|over there", re.I)


def helps(command: Any, path: str = "") -> Iterator[str]:
    """Each text of a verb, its options and its verbs, with the place it stands at."""
    yield f"{path}: {command.help or ''}"
    for parameter in command.params:
        yield f"{path} {parameter.name}: {getattr(parameter, 'help', None) or ''}"
    for name, verb in getattr(command, "commands", {}).items():
        yield from helps(verb, f"{path} {name}")


def test_no_help_text_uses_a_turn_that_readers_stumble_over() -> None:
    texts = [*helps(typer.main.get_command(build()))]
    texts += [f"{key}: {option.help}" for key, option in OPTIONS.items()]
    assert len(texts) > 200
    assert [text for text in texts if STUMBLES.search(text)] == []


def summaries(group: Any, path: str = "") -> Iterator[str]:
    """Each line of a group's list of verbs on a terminal of 80 columns."""
    verbs = getattr(group, "commands", {})
    room = 78 - 6 - max(map(len, verbs), default=0)
    for name, verb in verbs.items():
        yield f"{path} {name}: {verb.get_short_help_str(room)}"
        yield from summaries(verb, f"{path} {name}")


def test_no_summary_of_a_verb_is_cut_at_80_columns() -> None:
    lines = [*summaries(typer.main.get_command(build()))]
    assert len(lines) > 40
    assert [line for line in lines if line.endswith("...") and "zed ..." not in line] == []
