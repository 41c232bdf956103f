"""A full disk is named, once for each disk, and no longer when there is room again."""

from __future__ import annotations

from pathlib import Path

from swiftlmd.lifecycle.disk_watch import DiskWatch


async def test_a_full_disk_is_named_until_there_is_room(tmp_path: Path) -> None:
    free = {"bytes": 10**12}
    watch = DiskWatch([tmp_path / "state", tmp_path / "cache"], lambda folder: free["bytes"])
    await watch.look()
    assert watch.warnings() == []
    free["bytes"] = 3 * 10**6
    await watch.look()
    [warning] = watch.warnings()
    assert f"{tmp_path / 'state'} is full (3 MB free)" in warning
    free["bytes"] = 10**12
    await watch.look()
    assert watch.warnings() == []


async def test_a_disk_that_cannot_be_read_ends_nothing(tmp_path: Path) -> None:
    def gone(folder: Path) -> int:
        raise OSError(5, "gone")

    watch = DiskWatch([tmp_path], gone)
    await watch.look()
    assert watch.warnings() == []
