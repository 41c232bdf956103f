"""docs/fields.md: every field that a dialect knows has an effect that is told, and a test."""

from __future__ import annotations

import re

from field_table import ROOT, page, rows, untested


def test_every_field_has_an_effect_that_is_told():
    assert [name for name, effect in rows() if not effect] == []


def test_every_field_is_sent_by_a_test():
    assert untested() == []


def test_the_page_is_what_the_code_says():
    """Which of several tests stands in the last column may change; that there is one may not."""
    written = (ROOT / "docs" / "fields.md").read_text(encoding="utf-8")
    assert _without_tests(written) == _without_tests(page())
    for file, name in re.findall(r"`(test_\w+)(?:: (test_\w+))?` \|$", written, re.M):
        [path] = ROOT.glob(f"tests/*/**/{file}.py")
        assert not name or f"def {name}(" in path.read_text(encoding="utf-8"), (file, name)


def _without_tests(text: str) -> str:
    return re.sub(r"[^|]*\|$", "", text, flags=re.M)
