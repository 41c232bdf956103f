"""How a report of the daemon reads: units, ranges, numbers."""

from __future__ import annotations

import json

import pytest

from swiftlmctl.views import report_tables

REPORT = {
    "context": 131072,
    "needed_bytes": 3_400_000_000,
    "warm_up_s": 0.5,
    "forced": False,
    "speed": {"prefill_tokens_s": [11.152, 2604.4], "notes": ["a", "b"]},
    "decode": [{"width": 1, "tokens_s": "9.6 (9.1-10)"}],
}


def test_a_report_shows_units_ranges_and_tables(capsys: pytest.CaptureFixture[str]) -> None:
    report_tables.show(json.dumps(REPORT))
    assert capsys.readouterr().out.splitlines() == [
        "context    131,072",
        "needed     3.4 GB",
        "warm up s  0.5",
        "forced     no",
        "speed",
        "  prefill tok/s  11.2 to 2,604",
        "  notes",
        "    a",
        "    b",
        "decode",
        "  WIDTH  TOK/S",
        "      1  9.6 (9.1-10)",
    ]


def test_equal_items_in_a_row_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    report_tables.show(json.dumps({"layers": ["k4v3", "k4v3", "k4v3", "fp16", "k4v3"]}))
    assert capsys.readouterr().out.splitlines() == ["layers", "  k4v3 x 3", "  fp16", "  k4v3"]


def test_the_number_of_a_process_is_no_quantity() -> None:
    assert report_tables.cell("pid", 18717) == "18717"
