"""The Hugging Face cache as other programs and we fill it: which models lie there, and removal.

Blobs are shared by the revisions of one repository; a removal deletes those that nothing else of
the cache links to, and never follows a link out of the cache.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from swiftlm_engine.brain.facts import ModelFilesError, read_bounded
from swiftlmd.store.fetch.request import PART_SUFFIX

_PREFIX = "models--"
_MAX_REF_BYTES = 4096


@dataclass(frozen=True, slots=True)
class CachedRepo:
    """One repository of the cache."""

    name: str
    root: Path

    def snapshots(self, commit: str = "") -> list[Path]:
        """Folders of commits: the one asked for, what `main` points to, then the newest first.

        Raises OSError if they cannot be listed.
        """
        place = self.root / "snapshots"
        found = {path.name: path for path in listed_folders(place)}
        newest = sorted(found, key=lambda name: _changed_ns(found[name]), reverse=True)
        order = dict.fromkeys((commit, self._ref("main"), *newest))
        return [found[name] for name in order if name in found]

    def partial_bytes(self) -> int:
        """Of pulls that are not complete. A part may become its blob while we look."""
        return sum(map(_size, (self.root / "blobs").glob(f"*{PART_SUFFIX}")))

    def _ref(self, name: str) -> str:
        try:
            return read_bounded(self.root / "refs" / name, _MAX_REF_BYTES).decode().strip()
        except (OSError, UnicodeDecodeError, ModelFilesError):
            return ""


@dataclass(frozen=True, slots=True)
class Removal:
    """What goes and what that frees; nothing is deleted before `carry_out`."""

    paths: tuple[Path, ...]
    freed_bytes: int


def repos(cache: Path) -> Iterator[CachedRepo]:
    """Raises OSError if the cache cannot be listed; a repository that cannot be is given."""
    for root in listed_folders(cache):
        parts = root.name.removeprefix(_PREFIX).split("--")
        if root.name.startswith(_PREFIX) and len(parts) == 2:
            yield CachedRepo("/".join(parts), root)


def repo(cache: Path, name: str) -> CachedRepo:
    return CachedRepo(name, cache / f"{_PREFIX}{name.replace('/', '--')}")


def plan_removal(cached: CachedRepo, snapshot: Path | None) -> Removal:
    """One revision with the blobs that only it uses, and whatever a broken pull left.

    Raises OSError where another revision cannot be read: what it needs is not known then.
    """
    others = [p for p in listed_folders(cached.root / "snapshots") if p != snapshot]
    if not others:
        return Removal((cached.root,), _disk_bytes(cached.root))
    kept = {target for other in others for target in _targets(other)}
    home = (cached.root / "blobs").resolve()
    mine = {t for t in _targets(snapshot) if t.parent == home} if snapshot else set()
    parts = set((cached.root / "blobs").glob(f"*{PART_SUFFIX}"))
    blobs = sorted((mine - kept) | parts)
    refs = [p for p in (cached.root / "refs").rglob("*") if snapshot and _names(p, snapshot)]
    paths = (*blobs, *refs, *((snapshot,) if snapshot else ()))
    freed = sum(_file_bytes(p) for p in blobs) + (_disk_bytes(snapshot) if snapshot else 0)
    return Removal(paths, freed)


def carry_out(removal: Removal, cache: Path) -> None:
    """Deletes; raises OSError. Every path is inside the cache by construction and checked again."""
    home = cache.resolve()
    for path in removal.paths:
        if not path.parent.resolve().is_relative_to(home):
            raise OSError(f"{path} is not inside {cache}")
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _targets(snapshot: Path) -> Iterator[Path]:
    """The blobs that a snapshot links to: one step, so that a shared store stays as it is."""
    for folder, inner, names in os.walk(snapshot, onerror=_raise):
        for path in (Path(folder, name) for name in (*inner, *names)):
            if path.is_symlink():
                link = path.parent / path.readlink()
                yield link.parent.resolve() / link.name


def _raise(error: OSError) -> None:
    raise error


def _names(ref: Path, snapshot: Path) -> bool:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return ref.is_file() and ref.read_text().strip() == snapshot.name
    return False


def _disk_bytes(folder: Path) -> int:
    return sum(_file_bytes(p) for p in folder.rglob("*"))


def _file_bytes(path: Path) -> int:
    """A link frees nothing: what it points to lies elsewhere."""
    if path.is_symlink() or not path.is_file():
        return 0
    return _size(path)


def listed_folders(parent: Path) -> list[Path]:
    """Folders in it, those that cannot be looked into as well. Raises OSError as `entries`."""
    return [path for path in entries(parent) if _may_be_folder(path)]


def entries(folder: Path) -> list[Path]:
    """By name; none where nothing is. Raises OSError where something is that we may not read."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _may_be_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return True  # it cannot be told; whoever opens it learns why


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
