"""The folders on disk that hold kept prefixes, one of each model, whether it is loaded or not.

What lies there are conversations: it must be possible to delete them without loading the model. An
engine that serves a model holds its folder's lock; such a folder is left alone here.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

LOCK_FILE = ".lock"
KEPT_SUFFIXES = (".kv", ".state")


def folder_name(model: str) -> str:
    """The name of a model's folder; names of models have slashes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "--", model)


@dataclass(frozen=True, slots=True)
class _KeptFile:
    path: Path
    folder: Path  # of one fingerprint, in that of its model
    nbytes: int
    last_used: float  # that of what hangs on it, or later


@dataclass(frozen=True, slots=True)
class PrefixFolders:
    root: Path

    def of(self, model: str) -> Path:
        return self.root / folder_name(model)

    def delete(self, model: str) -> int:
        """Deletes what is kept of a model; bytes that were freed, 0 also where it is in use."""
        return self._delete(self.of(model))

    def delete_all(self) -> dict[str, int]:
        """Deletes everything that no engine uses: bytes by folder, of models that are gone too."""
        freed = {folder.name: self._delete(folder) for folder in self._folders()}
        return {name: nbytes for name, nbytes in freed.items() if nbytes}

    def delete_gone(self, models: Collection[str]) -> dict[str, int]:
        """Deletes what is kept of models that are not among these: bytes by folder."""
        there = {folder_name(model) for model in models}
        gone = [folder for folder in self._folders() if folder.name not in there]
        freed = {folder.name: self._delete(folder) for folder in gone}
        return {name: nbytes for name, nbytes in freed.items() if nbytes}

    def trim(
        self, max_bytes: int, *, but: Path | None = None, older_than: float = math.inf
    ) -> tuple[int, int]:
        """Deletes what was used longest ago, of all models together, until `max_bytes` are left.

        What an engine misses is a miss. Of `but`, the folder that an engine writes, nothing is
        deleted. The bytes that are left, and those of them outside of `but`.
        """
        files = sorted(self._files(), key=lambda file: file.last_used)
        left = sum(file.nbytes for file in files)
        others = sum(file.nbytes for file in files if file.folder != but)
        for file in files:
            if left <= max_bytes or file.last_used >= older_than:
                break
            if file.folder == but:
                continue
            with contextlib.suppress(OSError):
                file.path.unlink()
                left, others = left - file.nbytes, others - file.nbytes
        return left, others

    def _files(self) -> Iterator[_KeptFile]:
        for model in self._folders():
            if model.is_symlink():
                continue
            for path in model.glob("*/*"):
                with contextlib.suppress(OSError):
                    status = path.lstat()
                    if path.suffix in KEPT_SUFFIXES and stat.S_ISREG(status.st_mode):
                        yield _KeptFile(path, path.parent, status.st_size, status.st_mtime)

    def _folders(self) -> list[Path]:
        try:
            return sorted(folder for folder in self.root.iterdir() if folder.is_dir())
        except OSError:
            return []

    def _delete(self, folder: Path) -> int:
        is_one = folder.resolve().parent == self.root.resolve()  # ".." is a name, too
        if not is_one or not folder.is_dir() or folder.is_symlink():
            return 0
        with contextlib.suppress(OSError), _locked(folder):
            nbytes = _nbytes(folder)
            shutil.rmtree(folder)
            return nbytes
        return 0


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises BlockingIOError while an engine has the folder."""
    lock_file = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock_file)


def _nbytes(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())
