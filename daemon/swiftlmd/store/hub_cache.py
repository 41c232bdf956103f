"""The Hugging Face cache as other programs and we fill it: which models lie there, and removal.

Blobs are shared by the revisions of one repository; a removal deletes those that nothing else of
the cache links to, and never follows a link out of the cache.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from swiftlmd.store.fetch.request import PART_SUFFIX

_PREFIX = "models--"


@dataclass(frozen=True, slots=True)
class CachedRepo:
    """One repository of the cache."""

    name: str
    root: Path

    def snapshot(self, commit: str = "") -> Path | None:
        """The folder of a commit, by default what `main` points to, else the newest."""
        snapshots = self.root / "snapshots"
        for wanted in (commit, self._ref("main")):
            if wanted and (snapshots / wanted).is_dir():
                return snapshots / wanted
        folders = [p for p in _entries(snapshots) if p.is_dir()]
        return max(folders, key=lambda p: p.stat().st_mtime, default=None)

    def partial_bytes(self) -> int:
        return sum(p.stat().st_size for p in (self.root / "blobs").glob(f"*{PART_SUFFIX}"))

    def _ref(self, name: str) -> str:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return (self.root / "refs" / name).read_text().strip()
        return ""


@dataclass(frozen=True, slots=True)
class Removal:
    """What goes and what that frees; nothing is deleted before `carry_out`."""

    paths: tuple[Path, ...]
    freed_bytes: int


def repos(cache: Path) -> Iterator[CachedRepo]:
    for root in _entries(cache):
        parts = root.name.removeprefix(_PREFIX).split("--")
        if root.name.startswith(_PREFIX) and len(parts) == 2 and root.is_dir():
            yield CachedRepo("/".join(parts), root)


def repo(cache: Path, name: str) -> CachedRepo:
    return CachedRepo(name, cache / f"{_PREFIX}{name.replace('/', '--')}")


def plan_removal(cached: CachedRepo, snapshot: Path | None) -> Removal:
    """One revision with the blobs that only it uses, and whatever a broken pull left."""
    others = [p for p in _entries(cached.root / "snapshots") if p != snapshot]
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
    for path in snapshot.rglob("*"):
        if path.is_symlink():
            link = path.parent / path.readlink()
            yield link.parent.resolve() / link.name


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
    return path.stat().st_size


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
