"""The texts of the page: one table for each language, all whole, and no text outside them."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest

WEB = Path(str(resources.files("swiftlmd"))) / "web"
LANGUAGES = sorted(path.stem for path in (WEB / "texts").glob("*.js"))
ENTRY = re.compile(r'(?:^|[\s,])(?:"([^"]+)"|([a-zA-Z]\w*)): "((?:[^"\\]|\\.)*)"', re.MULTILINE)
SCRIPTS = [path for path in WEB.glob("*.js") if path.name not in ("sw.js", "qr.js")]
# Words between tags of a template: `<b>Like this</b>`; names of keys are the same everywhere.
BETWEEN_TAGS = re.compile(r">\s*([A-Z][a-z]+(?: [a-z]+)*)[^<>${}=`;]*</(?!kbd)")
ATTRIBUTE = re.compile(r'(?:aria-label|title|placeholder|alt)="([A-Z][^"$]+)"')


def table(language: str) -> dict[str, str]:
    source = (WEB / "texts" / f"{language}.js").read_text()
    source = re.sub(r"^\s*//.*$", "", source, flags=re.MULTILINE)
    return {quoted or plain: text for quoted, plain, text in ENTRY.findall(source)}


def marks(text: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", text))


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_says_all_that_english_says(language):
    english, own = table("en"), table(language)
    assert len(english) > 200
    assert sorted(own) == sorted(english)
    for name, text in own.items():
        assert marks(text) == marks(english[name]), name
        assert text.strip(), name


def test_every_language_is_offered_under_its_name():
    source = (WEB / "texts.js").read_text()
    offered = re.search(r"LANGUAGES = \{(.*?)\}", source, re.DOTALL)
    assert offered is not None
    assert sorted(re.findall(r"(\w\w): ", offered[1])) == LANGUAGES


def test_every_text_that_is_asked_for_is_there_and_no_other():
    code = "".join(path.read_text() for path in SCRIPTS)
    english = table("en")
    asked = set(re.findall(r'\bt\("([^"]+)"', code))
    assert asked <= set(english)
    words = set(re.findall(r"\w+(?: \w+)*", code))
    beginnings = tuple(set(re.findall(r"t\(`(\w+)\$\{", code)))
    unused = [n for n in english if n not in words and not n.startswith(beginnings)]
    assert unused == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_text_stands_outside_the_tables(path):
    source = path.read_text()
    assert BETWEEN_TAGS.findall(source) + ATTRIBUTE.findall(source) == []
