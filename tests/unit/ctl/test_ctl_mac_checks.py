"""The page of what only a Mac can confirm is made from the list in the code."""

from __future__ import annotations

from pathlib import Path

from swiftlmctl.doctor.mac_checks import CHECKS, page

PAGE = Path(__file__).resolve().parents[3] / "docs" / "mac-checklist.md"


def test_page_is_generated_from_the_list() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_point_says_what_to_expect_and_how() -> None:
    assert all(check.topic and check.expect and check.how for check in CHECKS)
    assert len({check.topic for check in CHECKS}) == len(CHECKS)
