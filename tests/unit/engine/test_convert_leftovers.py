"""What a killed conversion left is removed; what another one is writing stays."""

import os
from pathlib import Path

import pytest

from swiftlm_engine.brain.leftovers import remove_leftovers, temporary_name

DEAD = 4194304  # above every process's number


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("Llama-3", "Llama-3.1-8B"),
        ("Qwen2", "Qwen2.5-7B"),
        ("Qwen3-0", "Qwen3-0.6B"),
        ("a", "a.1"),
        ("a.1", "a"),
        ("x[1]", "x1"),
    ],
)
def test_a_name_that_begins_like_another_does_not_take_its_folder(
    tmp_path: Path, name: str, other: str
) -> None:
    mine = tmp_path / f".{name}.{DEAD}.swiftlm-tmp"
    unpacked = tmp_path / f".{name}.{DEAD}-abc_1.swiftlm-tmp"
    foreign = tmp_path / f".{other}.{DEAD}.swiftlm-tmp"
    for folder in (mine, unpacked, foreign):
        (folder / "inner").mkdir(parents=True)
    remove_leftovers(tmp_path, name)
    assert [p.name for p in tmp_path.iterdir()] == [foreign.name]
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_living_process_writes_stays(tmp_path: Path) -> None:
    mine = tmp_path / temporary_name("model")
    parent = tmp_path / f".model.{os.getppid()}.swiftlm-tmp"
    model = tmp_path / "model.1.swiftlm-tmp"  # a user's folder with a strange name
    for folder in (mine, parent, model):
        folder.mkdir()
    remove_leftovers(tmp_path, "model")
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([mine, parent, model])
