"""The README: short, and its table of what fits is what the planner says today."""

from __future__ import annotations

from pathlib import Path

from bench import mac_fits

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")


def test_the_readme_stays_under_800_words() -> None:
    assert len(README.split()) <= 800


def test_the_table_of_what_fits_is_what_the_planner_says() -> None:
    assert README.count(mac_fits.START) == README.count(mac_fits.END) == 1
    assert mac_fits.written(README) == README, "run `make fits`"


def test_the_table_has_models_of_every_kind() -> None:
    table = mac_fits.table()
    assert all(name in table for name in mac_fits.MODELS)
    assert "(SSD)" in table
    assert "| no |" in table
