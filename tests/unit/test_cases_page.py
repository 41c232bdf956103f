"""docs/cases.md names tests that exist: a renamed one must be renamed there, too."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_that_the_page_of_cases_names_exists() -> None:
    files = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}
    missing, source = [], ""
    for row in re.findall(r"^\| \d+ \|.*$", (ROOT / "docs/cases.md").read_text("utf-8"), re.M):
        for name in re.findall(r"`([^`]+)`", row.split("|")[3]):
            if name.endswith(".py"):
                path = files.get(name.rpartition("/")[2])
                source = path.read_text("utf-8") if path else ""
                missing += [] if path else [name]
            elif re.fullmatch(r"\w+", name) and f"def test_{name}(" not in source:
                missing.append(name)
    assert not missing
