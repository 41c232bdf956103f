"""What the pages name is there: verbs and options of swiftlmctl, configuration, files, targets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any  # typer brings a click of its own

import typer.main

from swiftlmctl.main import build
from swiftlmd.config.settings import OPTIONS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = re.compile(r"```\w*\n(.*?)```|`([^`\n]+)`", re.DOTALL)
CALL = re.compile(r"(?<![\w/.-])swiftlmctl ((?:(?!swiftlmctl )[^;,#`])*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
TABLES = "|".join(sorted({key.partition(".")[0] for key in OPTIONS}))
KEY = re.compile(rf"(?:^|config \w+ )((?:{TABLES})\.[a-z_]+)(?=$| )")
FILE = re.compile(r"\b(?:bench|ctl|daemon|docs|engine|launchd|proto|scripts|tests)/[\w./-]+\.\w+")

# Modules that are named like an option, an option of a bench script, a pattern of names.
MODULES = {"cluster.link", "cluster.reach", "engine.py", "service.py"}
FOREIGN = {"--keys"}
PATTERNS = {"docs/adr/NNNN-title.md"}
CTL = typer.main.get_command(build())


def code() -> Iterator[tuple[str, str]]:
    """Each line of code, with its page."""
    for page in PAGES:
        for block, inline in CODE.findall(page.read_text("utf-8")):
            for line in (block or inline).splitlines():
                yield page.name, line.replace("\\|", "|")


def commands(command: Any, words: list[str]) -> list[Any]:
    """The commands that these words choose (`a|b` chooses both); KeyError for one not there."""
    verbs = getattr(command, "commands", {})
    if not verbs or not words or not re.match(r"[a-z]", words[0]):
        return [command]
    chosen = [verbs[name] for name in words[0].split("|")]
    return [found for one in chosen for found in commands(one, words[1:])]


def options(*of: Any) -> set[str]:
    return {name for one in of for p in one.params for name in (*p.opts, *p.secondary_opts)}


def complaint(call: str) -> str:
    """What swiftlmctl would not understand of a call; "" for nothing."""
    try:
        known = options(CTL, *commands(CTL, call.split()))
    except KeyError as verb:
        return f"no verb {verb}"
    gone = [option for option in OPTION.findall(call) if option not in known]
    return f"no option {gone}" if gone else ""


def test_every_verb_and_option_on_the_pages_is_one_of_swiftlmctl() -> None:
    calls = [(page, call) for page, line in code() for call in CALL.findall(line)]
    assert len(calls) > 80
    found = [(page, call, complaint(call)) for page, call in calls]
    assert [entry for entry in found if entry[2]] == []


def every(command: Any) -> Iterator[Any]:
    yield command
    for verb in getattr(command, "commands", {}).values():
        yield from every(verb)


def test_every_option_that_stands_alone_on_the_pages_is_one_of_ours() -> None:
    ours = (
        options(*every(CTL))
        | FOREIGN
        | set(OPTION.findall((ROOT / "install.sh").read_text("utf-8")))
    )
    alone = [(page, line) for page, line in code() if line.startswith("--")]
    assert len(alone) > 30
    assert [(page, line) for page, line in alone if not ours.issuperset(OPTION.findall(line))] == []


def test_every_configuration_key_on_the_pages_is_an_option() -> None:
    keys = [(page, found[1]) for page, line in code() if (found := KEY.search(line))]
    assert len(keys) > 25
    assert [key for key in keys if key[1] not in OPTIONS and key[1] not in MODULES] == []


def test_every_file_and_target_on_the_pages_is_there() -> None:
    files = [(page, file) for page, line in code() for file in {*FILE.findall(line)} - PATTERNS]
    assert len(files) > 50
    assert [file for file in files if not (ROOT / file[1]).exists()] == []
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = [found for _, line in code() for found in re.findall(r"\bmake ([a-z][\w-]*)", line)]
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, re.M)] == []
