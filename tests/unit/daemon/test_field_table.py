"""docs/fields.md: every field that a dialect knows has an effect that is told, and a test."""

from __future__ import annotations

from field_table import ROOT, page, rows, untested


def test_every_field_has_an_effect_that_is_told():
    assert [name for name, effect in rows() if not effect] == []


def test_every_field_is_sent_by_a_test():
    assert untested() == []


def test_the_page_is_what_the_code_says():
    assert (ROOT / "docs" / "fields.md").read_text(encoding="utf-8") == page()
