"""Files that belong to the user: only our lines come and go, whatever happens meanwhile.

Invariant of each test: a file holds its old or its new bytes, never others.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from killed import at_every_line

from swiftlm_proto import user_files
from swiftlm_proto.user_files import (
    ChangedMeanwhile,
    add_lines,
    missing_folders,
    remove_folders,
    remove_lines,
    replace,
)

LINE = b"source '/home/ada/.bash_completions/swiftlmctl.sh'"
LATIN = "# Grüße\nalias müde=ls\n".encode("latin-1")


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a power cut would take is not what these tests are about."""
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / ".bashrc"


@pytest.mark.parametrize(
    "before",
    [
        b"",
        b"alias a=b\n",
        LATIN,
        b"a\0b\n\xff\xfe\n",
        b"windows\r\n\r\nlines\r\n",
        b"a lone \r in it\n",
        b"\xef\xbb\xbf# a byte order mark\n",
    ],
)
def test_lines_come_and_go_and_no_other_byte_changes(file: Path, before: bytes) -> None:
    file.write_bytes(before)
    assert add_lines(file, [LINE])
    assert not add_lines(file, [LINE])
    assert LINE in file.read_bytes()
    assert remove_lines(file, [LINE])
    assert file.read_bytes() == before


def test_lines_written_around_ours_stay(file: Path) -> None:
    for seed in range(200):
        choose = random.Random(seed)
        letters = b"ab \r\0\xe9'#\t"
        pieces = [bytes(choose.choices(letters, k=choose.randrange(9))) for _ in range(6)]
        theirs = [piece for piece in pieces if piece.removesuffix(b"\r") != LINE]
        mixed = list(theirs)
        for _ in range(choose.randrange(4)):
            mixed.insert(choose.randrange(len(mixed) + 1), choose.choice([LINE, LINE + b"\r"]))
        file.write_bytes(b"\n".join(mixed) + b"\n")
        remove_lines(file, [LINE])
        assert file.read_bytes() == b"\n".join(theirs) + b"\n"


def test_a_line_that_only_contains_ours_stays(file: Path) -> None:
    file.write_bytes(b"# " + LINE + b"\n" + LINE + b" # mine\nx\r" + LINE + b"\n")
    assert not remove_lines(file, [LINE])


def test_a_link_stays_and_its_target_changes(file: Path, tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    real = tmp_path / "dotfiles" / "bashrc"
    real.write_bytes(LINE + b"\nmine\n")
    file.symlink_to(Path("dotfiles") / "bashrc")
    remove_lines(file, [LINE])
    assert (file.is_symlink(), real.read_bytes()) == (True, b"mine\n")
    assert list(real.parent.iterdir()) == [real]


def test_mode_stays(file: Path) -> None:
    file.write_bytes(b"x\n")
    file.chmod(0o751)
    add_lines(file, [LINE])
    assert file.stat().st_mode & 0o777 == 0o751


@pytest.mark.parametrize("call", ["write", "fsync", "replace", "open"])
def test_a_full_disk_changes_nothing_and_leaves_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    file.write_bytes(LATIN + LINE + b"\n")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    if call == "write":
        file.write_bytes(LATIN * 10_000 + LINE + b"\n")
        limited(monkeypatch)
    else:
        monkeypatch.setattr(f"os.{call}", full)
    before = file.read_bytes()
    with pytest.raises(OSError, match="No space left") as caught:
        remove_lines(file, [LINE])
    monkeypatch.undo()
    assert caught.value.filename == str(file)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes the first bytes of a file and no more."""
    opened = user_files.open if hasattr(user_files, "open") else open

    def half(*words: object, **options: object) -> object:
        file = opened(*words, **options)  # type: ignore[call-overload]  # as it was called
        written = file.write

        class Half:
            def __enter__(self) -> Half:
                return self

            def __exit__(self, *_: object) -> None:
                file.close()

            def write(self, content: bytes) -> None:
                written(content[: len(content) // 2])
                file.flush()
                raise OSError(28, "No space left on device")

        return Half()

    monkeypatch.setattr(user_files, "open", half, raising=False)


def test_killed_at_any_line_leaves_old_or_new_and_the_next_run_mends_it(file: Path) -> None:
    before, after = LATIN + LINE + b"\nend\n", LATIN + b"end\n"
    file.write_bytes(before)
    kills = 0
    for _ in at_every_line(lambda: remove_lines(file, [LINE]) and None, ["user_files.py"]):
        kills += 1
        assert file.read_bytes() in (before, after)
        for draft in file.parent.glob(".*swiftlm-*"):  # its process is dead now
            draft.rename(draft.with_name(f"{draft.name.rpartition('-')[0]}-999999999"))
        remove_lines(file, [LINE])
        assert file.read_bytes() == after
        assert list(file.parent.iterdir()) == [file]
        file.write_bytes(before)
    assert kills > 20


def test_what_another_program_wrote_meanwhile_is_not_overwritten(file: Path) -> None:
    file.write_bytes(b"theirs, newer\n")
    with pytest.raises(ChangedMeanwhile):
        replace(file, b"ours", before=b"theirs, older\n")
    with pytest.raises(ChangedMeanwhile):
        replace(file, b"ours", before=None)
    assert file.read_bytes() == b"theirs, newer\n"
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop", "two names"])
def test_what_is_no_ordinary_file_is_left_alone(file: Path, kind: str) -> None:
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "loop":
        file.symlink_to(file)
    else:
        file.write_bytes(b"mine\n")
        os.link(file, file.with_name("other"))
    before = sorted(path.name for path in file.parent.iterdir())
    with pytest.raises(OSError, match=r".") as caught:
        add_lines(file, [LINE])
    assert caught.value.filename == str(file)
    assert sorted(path.name for path in file.parent.iterdir()) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_set_read_only_is_left_alone(file: Path) -> None:
    file.write_bytes(b"mine\n")
    file.chmod(0o444)
    with pytest.raises(PermissionError):
        add_lines(file, [LINE])
    assert file.read_bytes() == b"mine\n"


def test_only_folders_that_we_made_go_and_only_empty_ones(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    made = missing_folders(tmp_path / "a" / "b" / "c")
    assert made == [tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"]
    made[-1].mkdir(parents=True)
    (made[0] / "mine").touch()
    remove_folders(made)
    assert (made[0].exists(), made[1].exists()) == (True, False)
    (made[0] / "mine").unlink()
    remove_folders(made)
    assert (tmp_path / "a").exists()
    assert not made[0].exists()
