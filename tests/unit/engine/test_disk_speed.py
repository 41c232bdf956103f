"""Measuring a disk: nothing is read twice, and what memory answers does not count."""

import os
from pathlib import Path

import pytest

from swiftlm_engine.brain import disk_speed
from swiftlm_engine.brain.disk_speed import measure_disk


def checkpoint(folder: Path, megabytes: int) -> list[Path]:
    path = folder / "model.safetensors"
    path.write_bytes(b"x" * (megabytes << 20))
    return [path]


def test_speed_is_at_the_fewest_threads_that_come_near_the_best(tmp_path, monkeypatch):
    speeds = {1: 1.0e9, 2: 1.9e9, 4: 2.0e9}
    monkeypatch.setattr(disk_speed, "_read_for", lambda _p, _r, number, _s: speeds[number])
    found = measure_disk(checkpoint(tmp_path, 1), 16384, threads=(1, 2, 4), seed=0)
    assert found is not None
    assert found.threads == 2
    assert found.median_bytes_s == found.low_bytes_s == found.high_bytes_s == 1.9e9


def test_no_place_is_read_twice(tmp_path, monkeypatch):
    seen = []
    cold = disk_speed._read_cold
    monkeypatch.setattr(
        disk_speed, "_read_cold", lambda fd, at, buffer: seen.append(at) or cold(fd, at, buffer)
    )
    found = measure_disk(checkpoint(tmp_path, 4), 32768, round_s=5.0, rounds=1, seed=1)
    assert len(seen) == len(set(seen)) == 128  # all of the file, by whoever came first
    assert found is None or found.record_bytes == 32768


def test_an_answer_from_memory_does_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_speed, "_read_for", lambda *_: 1e12)
    assert measure_disk(checkpoint(tmp_path, 1), 16384) is None


def test_a_checkpoint_of_few_records_says_nothing(tmp_path):
    assert measure_disk(checkpoint(tmp_path, 1), 1 << 20) is None


def test_without_a_way_to_drop_pages_what_lies_in_memory_is_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, right after a download."""
    files = checkpoint(tmp_path, 8)
    files[0].read_bytes()
    monkeypatch.delattr(os, "posix_fadvise")
    assert measure_disk(files, 65536, rounds=1, threads=(1, 4), round_s=0.05) is None


def test_without_a_way_to_drop_pages_records_that_are_not_in_memory_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fadvise")
    monkeypatch.setattr(disk_speed, "_in_memory", lambda fd, at, size: at >= 4 << 20)
    seen = []
    monkeypatch.setattr(disk_speed, "_read_cold", lambda fd, at, _: seen.append(at) or 65536)
    measure_disk(checkpoint(tmp_path, 8), 65536, rounds=1, threads=(1,), round_s=5.0)
    assert sorted(seen) == list(range(0, 4 << 20, 65536))
