"""Folders that replace each other, and what the fetching process is told of the hub's places."""

import threading
from pathlib import Path

import pytest

from swiftlmd.config.settings import Settings
from swiftlmd.store.options import from_settings
from swiftlmd.store.swap import put_in_place


def test_many_that_keep_the_same_folder_all_succeed(tmp_path: Path) -> None:
    out, failed = tmp_path / "out", []

    def keep(number: int) -> None:
        for turn in range(20):
            draft = tmp_path / f"draft-{number}-{turn}"
            draft.mkdir()
            (draft / "file").write_text("whole")
            try:
                put_in_place(draft, out)
            except OSError as error:
                failed.append(error)

    threads = [threading.Thread(target=keep, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (out / "file").read_text() == "whole"


def test_what_was_there_stays_when_the_new_one_cannot_come(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(OSError, match="No such file"):
        put_in_place(tmp_path / "absent", tmp_path / "out")
    assert (tmp_path / "out").is_dir()


def test_a_folder_for_models_does_not_move_the_login(tmp_path: Path) -> None:
    settings = Settings(hub_home=str(tmp_path / "X"))
    found = from_settings(settings, {"HF_TOKEN": "t"}, tmp_path)
    assert found.hub_cache == tmp_path / "X" / "hub"
    assert "HF_HOME" not in found.environ
    assert found.environ["HF_HUB_CACHE"] == str(found.hub_cache)
    assert "HF_TOKEN_PATH" not in found.environ
    (tmp_path / "X").mkdir()
    (tmp_path / "X" / "token").write_text("hf_x")  # of somebody who logged in there
    found = from_settings(settings, {}, tmp_path)
    assert found.environ["HF_TOKEN_PATH"] == str(tmp_path / "X" / "token")


def test_the_environment_s_own_cache_goes_before_the_setting(tmp_path: Path) -> None:
    environ = {"HF_HUB_CACHE": str(tmp_path / "mine"), "HF_HOME": str(tmp_path / "home")}
    found = from_settings(Settings(hub_home=str(tmp_path / "X")), environ, tmp_path)
    assert found.hub_cache == tmp_path / "mine"
    assert found.environ["HF_HOME"] == str(tmp_path / "home")
