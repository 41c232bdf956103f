"""The pages of cases name tests that exist: a renamed one must be renamed there, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.name for path in (ROOT / "docs").glob("cases*.md"))
FILES = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_of_cases_names_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    cells = [row.strip("|").split("|")[-1] for row in re.findall(r"^\| ?[^ -].*\|$", text, re.M)]
    assert len(cells) > 3
    assert [name for cell in cells for name in missing(cell)] == []


def missing(cell: str) -> Iterator[str]:
    """A file is named before its tests; a test without a file may be in any."""
    source = "".join(path.read_text("utf-8") for path in FILES.values())
    for name in re.findall(r"`([^`]+)`", cell):
        if name.endswith(".py"):
            path = FILES.get(name.rpartition("/")[2], ROOT / name)
            source = path.read_text("utf-8") if path.exists() else ""
            if not source:
                yield name
        elif re.fullmatch(r"\w+", name) and f"def test_{name.removeprefix('test_')}(" not in source:
            yield name
