"""The store of measured against priced memory."""

from pathlib import Path

import pytest

from swiftlmd.memory import RatioStore


def test_ratio_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "state" / "ratios.json"
    first = RatioStore(path).record("model-a", 1000, 1040, 7.0)
    assert (first.last, first.samples, first.date) == (1.04, 1, 7.0)
    assert RatioStore(path).get("model-a") == first
    assert RatioStore(path).get("model-b") is None


def test_average_follows_and_the_highest_stays(tmp_path: Path) -> None:
    store = RatioStore(tmp_path / "ratios.json")
    store.record("a", 100, 100, 1.0)
    store.record("a", 100, 120, 2.0)
    ratio = store.record("a", 100, 100, 3.0)
    assert ratio.last == 1.0
    assert ratio.highest == 1.2
    assert 1.0 < ratio.average < 1.06
    assert ratio.samples == 3


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 3}', '{"a": {"last": 1}}', "\x00"])
def test_broken_file_counts_as_empty_and_is_replaced(text: str, tmp_path: Path) -> None:
    path = tmp_path / "ratios.json"
    path.write_text(text)
    store = RatioStore(path)
    assert store.get("a") is None
    store.record("a", 10, 10, 0.0)
    assert RatioStore(path).get("a") is not None


def test_nothing_is_left_beside_the_file(tmp_path: Path) -> None:
    RatioStore(tmp_path / "ratios.json").record("a", 10, 10, 0.0)
    assert [entry.name for entry in tmp_path.iterdir()] == ["ratios.json"]


def test_file_does_not_grow_without_end(tmp_path: Path) -> None:
    store = RatioStore(tmp_path / "ratios.json")
    for n in range(210):
        store.record(f"model-{n}", 10, 10, float(n))
    again = RatioStore(tmp_path / "ratios.json")
    assert again.get("model-0") is None
    assert again.get("model-209") is not None


@pytest.mark.parametrize(("priced", "measured"), [(0, 10), (-1, 10), (10, -1)])
def test_nonsense_is_not_recorded(priced: int, measured: int, tmp_path: Path) -> None:
    store = RatioStore(tmp_path / "ratios.json")
    with pytest.raises(ValueError, match="cannot compare"):
        store.record("a", priced, measured, 0.0)
