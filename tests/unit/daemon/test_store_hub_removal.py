"""Removal from the shared hub cache: only what nothing else there links to, never outside it."""

import os
from pathlib import Path

import pytest

from swiftlmd.store import hub_cache


def snapshot(cache: Path, commit: str, blobs: dict[str, str], ref: str = "") -> Path:
    """Files of one commit, each a link to the blob it names (of ten bytes)."""
    root = cache / "models--org--name"
    folder = root / "snapshots" / commit
    folder.mkdir(parents=True)
    (root / "blobs").mkdir(exist_ok=True)
    for file, blob in blobs.items():
        (root / "blobs" / blob).write_bytes(b"0123456789")
        (folder / file).symlink_to(os.path.relpath(root / "blobs" / blob, folder))
    if ref:
        (root / "refs").mkdir(exist_ok=True)
        (root / "refs" / ref).write_text(commit)
    return folder


def remove(cache: Path, folder: Path | None) -> hub_cache.Removal:
    removal = hub_cache.plan_removal(hub_cache.repo(cache, "org/name"), folder)
    hub_cache.carry_out(removal, cache)
    return removal


def test_blobs_shared_with_another_revision_stay(tmp_path: Path) -> None:
    old = snapshot(tmp_path, "old", {"w": "one", "t": "shared"}, ref="v1")
    new = snapshot(tmp_path, "new", {"w": "two", "t": "shared"}, ref="main")
    removal = remove(tmp_path, old)
    assert removal.freed_bytes == 10
    assert not old.exists()
    assert sorted(p.name for p in new.iterdir() if p.exists()) == ["t", "w"]
    root = new.parents[1]
    assert sorted(p.name for p in (root / "blobs").iterdir()) == ["shared", "two"]
    assert [p.name for p in (root / "refs").iterdir()] == ["main"]


def test_last_revision_takes_the_whole_repository(tmp_path: Path) -> None:
    only = snapshot(tmp_path, "only", {"w": "one", "t": "two"}, ref="main")
    removal = remove(tmp_path, only)
    assert not (tmp_path / "models--org--name").exists()
    assert removal.freed_bytes == 20 + len("only")


def test_unfinished_pull_is_removed_without_a_snapshot(tmp_path: Path) -> None:
    blobs = tmp_path / "models--org--name" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "x.swiftlm-part").write_bytes(b"12345")
    assert remove(tmp_path, None).freed_bytes == 5
    assert not blobs.exists()


def test_planning_deletes_nothing(tmp_path: Path) -> None:
    only = snapshot(tmp_path, "only", {"w": "one"})
    hub_cache.plan_removal(hub_cache.repo(tmp_path, "org/name"), only)
    assert (only / "w").read_bytes() == b"0123456789"


def test_a_link_out_of_the_cache_is_not_followed(tmp_path: Path) -> None:
    cache, precious = tmp_path / "cache", tmp_path / "precious"
    precious.write_text("kept")
    snapshot(cache, "new", {"w": "two"})
    old = snapshot(cache, "old", {"w": "one"})
    (old / "evil").symlink_to(precious)
    remove(cache, old)
    assert precious.read_text() == "kept"
    assert not old.exists()


def test_a_repository_folder_that_is_a_link_is_unlinked_only(tmp_path: Path) -> None:
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    cache.mkdir()
    (cache / "models--org--name").symlink_to(outside)
    remove(cache, None)
    assert (outside / "kept").read_text() == "kept"


def test_paths_outside_the_cache_are_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("kept")
    cache = tmp_path / "cache"
    cache.mkdir()
    with pytest.raises(OSError, match="not inside"):
        hub_cache.carry_out(hub_cache.Removal((outside,), 4), cache)
    assert outside.exists()
