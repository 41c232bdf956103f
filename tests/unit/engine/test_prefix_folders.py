"""Kept prefixes are deleted without their model, but never under a running engine."""

from __future__ import annotations

import pytest

from swiftlm_engine.brain.prefix_folders import PrefixFolders
from swiftlm_engine.prefix.fingerprint import Fingerprint
from swiftlm_engine.prefix.namespace import open_namespace


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
