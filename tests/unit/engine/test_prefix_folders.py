"""Kept prefixes are deleted without their model, but never under a running engine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from swiftlm_engine.brain.prefix_folders import PrefixFolders
from swiftlm_engine.prefix.fingerprint import Fingerprint
from swiftlm_engine.prefix.namespace import open_namespace
from swiftlm_engine.prefix.shared_limit import SharedLimit


@pytest.fixture
def folders(tmp_path) -> PrefixFolders:
    return PrefixFolders(tmp_path / "prefix")


def keep(folders: PrefixFolders, model: str, nbytes: int = 1000) -> None:
    namespace = open_namespace(folders.of(model), Fingerprint({"model": model}))
    (namespace.folder / "a.kv").write_bytes(bytes(nbytes))
    namespace.close()


def test_folder_of_a_model_is_deleted_and_others_stay(folders):
    keep(folders, "org/one")
    keep(folders, "two")
    assert folders.delete("org/one") >= 1000
    assert not folders.of("org/one").exists()
    assert folders.of("two").exists()
    assert folders.delete("org/one") == 0


def test_all_that_no_engine_uses_is_deleted(folders):
    keep(folders, "one")
    keep(folders, "two")
    used = open_namespace(folders.of("used"), Fingerprint({}))
    assert folders.delete("used") == 0
    assert sorted(folders.delete_all()) == ["one", "two"]
    assert used.folder.exists()
    used.close()
    assert list(folders.delete_all()) == ["used"]


@pytest.mark.parametrize("name", ["..", ".", "", "../models", "/"])
def test_no_name_leads_out_of_the_folder(folders, name):
    keep(folders, "one")
    outside = folders.root.parent / "models" / "precious"
    outside.mkdir(parents=True)
    assert folders.delete(name) == 0
    assert outside.exists()
    assert folders.of("one").exists()


def test_where_nothing_was_ever_kept_there_is_nothing_to_delete(folders):
    assert folders.delete("one") == 0
    assert folders.delete_all() == {}


def kept(folders: PrefixFolders, model: str, *ages: int) -> None:
    """One file of 1000 bytes for each age, in seconds."""
    namespace = open_namespace(folders.of(model), Fingerprint({"model": model}))
    for age in ages:
        path = namespace.folder / f"{age}.kv"
        path.write_bytes(bytes(1000))
        os.utime(path, (time.time() - age,) * 2)
    namespace.close()


def folder_of(folders: PrefixFolders, model: str) -> Path:
    return folders.of(model) / Fingerprint({"model": model}).digest


def left(folders: PrefixFolders) -> set[str]:
    return {f"{path.parents[1].name}/{path.stem}" for path in folders.root.rglob("*.kv")}


def test_the_limit_is_that_of_all_models_and_the_oldest_go_first(folders):
    kept(folders, "one", 50, 10)
    kept(folders, "two", 40, 20)
    assert folders.trim(4000) == (4000, 4000)
    assert folders.trim(2500) == (2000, 2000)
    assert left(folders) == {"one/10", "two/20"}
    assert folders.trim(1000, but=folder_of(folders, "one")) == (1000, 0)
    assert left(folders) == {"one/10"}


def test_models_that_are_gone_leave_nothing_but_what_an_engine_uses(folders):
    kept(folders, "org/here", 10)
    kept(folders, "gone", 10)
    used = open_namespace(folders.of("used"), Fingerprint({}))
    assert list(folders.delete_gone(["org/here", "other"])) == ["gone"]
    assert left(folders) == {"org--here/10"}
    assert used.folder.exists()
    used.close()


def test_an_engine_counts_what_others_keep_and_takes_what_they_used_before_it(folders):
    kept(folders, "own", 30)
    kept(folders, "other", 50, 10)
    shared = SharedLimit(folders, folder_of(folders, "own"), 3000)
    assert shared.others_bytes == 2000
    shared._looked -= 100
    shared.refresh(lambda: time.time() - 30)
    shared._thread.join(5)
    assert shared.others_bytes == 1000
    assert left(folders) == {"own/30", "other/10"}
