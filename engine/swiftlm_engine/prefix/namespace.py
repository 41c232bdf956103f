"""The folder of one model and one fingerprint on the SSD: opened, cleaned, locked.

`root` belongs to one model; each fingerprint has a subfolder. Opening deletes what can never be
used again: other fingerprints, scratch files, damaged files, blocks whose parent is gone. What was
kept in another KV format stays, for the user who tries one: it counts against the limit.
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from swiftlm_engine.brain.prefix_folders import LOCK_FILE
from swiftlm_engine.prefix.block_file import BlockHeader, CorruptFile, FileKind, read_header
from swiftlm_engine.prefix.block_tree import Block, BlockTree, State
from swiftlm_engine.prefix.fingerprint import Fingerprint

SUFFIXES = {FileKind.BLOCK: ".kv", FileKind.STATE: ".state"}
_FINGERPRINT_FILE = "fingerprint.json"
_MAY_COME_BACK = ("kv_format",)


class FolderInUse(RuntimeError):
    """Another process serves this model from the same folder."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """A folder of another fingerprint that was deleted, and what had changed."""

    name: str
    nbytes: int
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Namespace:
    folder: Path
    fingerprint: Fingerprint
    lock_file: int  # open descriptor; the lock lives as long as it does
    deleted: tuple[Deleted, ...]

    def path(self, kind: FileKind, id: str) -> Path:
        return self.folder / (id + SUFFIXES[kind])

    def make_folder(self) -> None:
        """Also again, when somebody deleted it."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.folder / _FINGERPRINT_FILE).write_text(self.fingerprint.to_json())

    def delete_others(self) -> None:
        """What other fingerprints left, of other KV formats too."""
        for folder in _others(self.folder.parent, self.fingerprint):
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        os.close(self.lock_file)


def open_namespace(root: Path, fingerprint: Fingerprint, lock_wait_s: float = 0.0) -> Namespace:
    """Lock the root, delete what cannot be used again, make the folder. Raises FolderInUse.

    A predecessor that is still saving holds the lock for a few seconds: `lock_wait_s`.
    """
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock_file = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(lock_file, time.monotonic() + lock_wait_s)
        deleted = tuple(_delete_changed(root, fingerprint))
        namespace = Namespace(root / fingerprint.digest, fingerprint, lock_file, deleted)
        namespace.make_folder()
    except BlockingIOError as error:
        os.close(lock_file)
        raise FolderInUse(f"{root} is in use by another process") from error
    except BaseException:
        os.close(lock_file)
        raise
    return namespace


def _lock(lock_file: int, deadline: float) -> None:
    """Raises BlockingIOError when somebody else still has it at the deadline."""
    while True:
        try:
            return fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.05)


def load_tree(namespace: Namespace, tree: BlockTree) -> int:
    """Fill the tree from the files; deletes the damaged and the orphaned, returns how many."""
    found = list(_headers(namespace.folder))
    blocks = sorted((f for f in found if f[1] and f[1].kind is FileKind.BLOCK), key=_start)
    states = [f for f in found if f[1] and f[1].kind is FileKind.STATE]
    num_deleted = 0
    for path, header in [*blocks, *states, *(f for f in found if f[1] is None)]:
        if header is None or not _add(tree, path, header):
            path.unlink(missing_ok=True)
            num_deleted += 1
    return num_deleted


def _start(found: tuple[Path, BlockHeader | None]) -> int:
    assert found[1] is not None
    return found[1].start


def _headers(folder: Path) -> Iterator[tuple[Path, BlockHeader | None]]:
    """Every cache file with its header; None where there is no sound one."""
    for path in folder.iterdir():
        if path.suffix in SUFFIXES.values():
            try:
                header = read_header(path)
                sound = path.stem == header.id and path.suffix == SUFFIXES[header.kind]
                yield path, header if sound else None
            except (CorruptFile, OSError):
                yield path, None
        elif path.suffix == ".tmp":
            yield path, None


def _add(tree: BlockTree, path: Path, header: BlockHeader) -> bool:
    """False for a file that hangs on nothing."""
    status = path.stat()
    parent = tree.get(header.parent) if header.parent else None
    if header.kind is FileKind.STATE:
        if not isinstance(parent, Block) or not parent.start < header.end <= parent.end:
            return False
        tree.add(
            State(
                id=header.id,
                block=parent,
                position=header.end,
                floor=header.floor,
                has_windows=header.has_windows,
                nbytes=status.st_size,
                last_used=status.st_mtime,
                is_ready=True,
            )
        )
        return True
    if isinstance(parent, Block):
        if not parent.start < header.start <= parent.end:
            return False
    elif header.parent or header.start != 0:
        return False
    tree.add(
        Block(
            id=header.id,
            parent=parent if isinstance(parent, Block) else None,
            start=header.start,
            tokens=header.tokens,
            salt=header.salt,
            lows=header.lows,
            nbytes=status.st_size,
            last_used=status.st_mtime,
            is_ready=True,
        )
    )
    return True


def _delete_changed(root: Path, fingerprint: Fingerprint) -> Iterator[Deleted]:
    for folder in _others(root, fingerprint):
        changed = fingerprint.changes_from(_read_fingerprint(folder))
        if changed == _MAY_COME_BACK:
            continue
        nbytes = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
            yield Deleted(folder.name, nbytes, changed)


def _others(root: Path, fingerprint: Fingerprint) -> list[Path]:
    try:
        found = sorted(root.iterdir())
    except OSError:  # the volume is gone, and what was on it
        return []
    return [f for f in found if f.is_dir() and f.name != fingerprint.digest]


def _read_fingerprint(folder: Path) -> Fingerprint:
    try:
        return Fingerprint.from_json((folder / _FINGERPRINT_FILE).read_text())
    except (OSError, ValueError):
        return Fingerprint({})
