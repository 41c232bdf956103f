"""One repository in the hub cache's documented layout: blobs, snapshots, refs.

    models--ORG--NAME/blobs/<digest>                      the bytes
    models--ORG--NAME/snapshots/<commit>/<file>           a link to its blob
    models--ORG--NAME/refs/<revision>                     the commit of a name
Other programs find and share what is fetched here, and the other way round.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from swiftlmd.store.fetch.choice import RemoteFile
from swiftlmd.store.fetch.failure import FetchFailed, Reason
from swiftlmd.store.fetch.request import PART_SUFFIX

_LOCK_POLL_S = 0.5
_DIGEST = re.compile(r"[0-9a-f]{40,64}")
_HASH_CHUNK = 1 << 22


class RepoCache:
    def __init__(self, cache: Path, repo: str) -> None:
        self.cache = cache
        self.root = cache / f"models--{repo.replace('/', '--')}"
        self._blobs = self.root / "blobs"
        self._lock = threading.Lock()  # guards the count
        self._checked_bytes = 0

    @property
    def checked_bytes(self) -> int:
        """Read again to compare hashes, of all files together: the sign of life of a slow disk."""
        return self._checked_bytes

    def digest_of(self, path: Path, file: RemoteFile) -> str:
        return digest_of(path, file, self._count)

    def _count(self, num_bytes: int) -> None:
        with self._lock:
            self._checked_bytes += num_bytes

    def prepare(self) -> None:
        self._blobs.mkdir(parents=True, exist_ok=True)

    def blob(self, file: RemoteFile) -> Path:
        if not _DIGEST.fullmatch(file.digest):
            raise FetchFailed(Reason.UNSAFE, f"the hub gives no digest for {file.name}")
        return self._blobs / file.digest

    def part(self, file: RemoteFile) -> Path:
        return self._blobs / f"{file.digest}{PART_SUFFIX}"

    def present_bytes(self, file: RemoteFile) -> int:
        """What of the file is on disk, whole or in part; never more than its size."""
        for path in (self.blob(file), self.part(file)):
            with contextlib.suppress(OSError):
                return min(path.stat().st_size, file.size)
        return 0

    def is_whole(self, file: RemoteFile) -> bool:
        with contextlib.suppress(OSError):
            return self.blob(file).stat().st_size == file.size
        return False

    def discard_if_wrong(self, file: RemoteFile) -> None:
        """Reads the whole blob."""
        blob = self.blob(file)
        if blob.exists() and self.digest_of(blob, file) != file.digest:
            blob.unlink()

    def free_bytes(self) -> int:
        return shutil.disk_usage(self._blobs).free

    @contextmanager
    def writing(self, file: RemoteFile) -> Iterator[Path]:
        """The part file, ours alone: a second daemon waits here. A kill lets go of it."""
        with self.part(file).open("ab") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(_LOCK_POLL_S)
            yield self.part(file)

    def accept(self, file: RemoteFile) -> None:
        """The part becomes the blob, synced first: a name in `blobs` is a promise."""
        part = self.part(file)
        with part.open("rb") as f:
            os.fsync(f.fileno())
        part.replace(self.blob(file))

    def link(self, commit: str, revision: str, files: list[RemoteFile]) -> Path:
        """The snapshot folder, with every file in it; the ref comes last."""
        snapshot = self.root / "snapshots" / commit
        for file in files:
            self._link_one(snapshot / file.name, file)
        if revision != commit:
            ref = self.root / "refs" / revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            draft = ref.with_name(f".{ref.name}.{os.getpid()}")
            draft.write_text(commit)
            draft.replace(ref)
        return snapshot

    def _link_one(self, place: Path, file: RemoteFile) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        blob = self.blob(file)
        if place.exists():
            return
        place.unlink(missing_ok=True)  # a link whose blob was deleted
        try:
            place.symlink_to(os.path.relpath(blob, place.parent))
        except OSError:  # exFAT and the like have no links
            blob.rename(place)


def digest_of(
    path: Path, file: RemoteFile, count: Callable[[int], None] = lambda num_bytes: None
) -> str:
    """In the hub's terms: sha256 of a large file, git's blob hash of a small one."""
    with path.open("rb") as f:
        if file.large:
            digest = hashlib.sha256()
        else:
            size = os.fstat(f.fileno()).st_size
            digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        while chunk := f.read(_HASH_CHUNK):
            digest.update(chunk)
            count(len(chunk))
        return digest.hexdigest()
