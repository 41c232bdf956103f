"""One file from the hub into its part file: by range from where it ended, until its hash fits."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from huggingface_hub import constants, hf_hub_url
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers

from swiftlmd.store.fetch.cache import RepoCache
from swiftlmd.store.fetch.choice import RemoteFile
from swiftlmd.store.fetch.failure import (
    FetchFailed,
    Reason,
    is_unreachable,
    passes_by_itself,
    retry_after_s,
)

CHUNK_BYTES = 1 << 16  # written at once: what a kill or a dead connection can cost
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 30.0
_HASH_ATTEMPTS = 2
_CONNECT_ATTEMPTS = 2

Result = TypeVar("Result")


@dataclass
class Waiting:
    """Growing pauses with some spread; starts over when something arrived."""

    patience_s: float
    _since: float = field(default_factory=time.monotonic)
    _pause_s: float = _FIRST_WAIT_S

    def progressed(self) -> None:
        self._since, self._pause_s = time.monotonic(), _FIRST_WAIT_S

    def pause(self, asked_s: float) -> bool:
        """Sleeps; False when patience would be over before the next try."""
        wait = max(asked_s, self._pause_s * random.uniform(0.7, 1.3))
        if time.monotonic() - self._since + wait > self.patience_s:
            return False
        time.sleep(wait)
        self._pause_s = min(self._pause_s * 2, _LONGEST_WAIT_S)
        return True


def persistently(call: Callable[[], Result], patience_s: float) -> Result:
    """The answer to one short request, asked again while the hub is busy.

    A hub that cannot be reached at all is told after one more try: people are waiting.
    """
    waiting, unreached = Waiting(patience_s), 0
    while True:
        try:
            return call()
        except Exception as error:  # every kind the client has; what cannot pass is raised
            unreached += is_unreachable(error)
            again = passes_by_itself(error) and unreached < _CONNECT_ATTEMPTS
            if not again or not waiting.pause(retry_after_s(error)):
                raise


@dataclass(frozen=True, slots=True)
class Downloader:
    """The files of one commit of one repository."""

    repo: str
    commit: str
    cache: RepoCache
    patience_s: float
    recheck: bool  # blobs that are here are read again

    def fetch(self, file: RemoteFile) -> None:
        """Returns when the blob is there and right; raises FetchFailed or the client's error."""
        if self.recheck:
            self.cache.discard_if_wrong(file)
        if self.cache.is_whole(file):
            return
        with self.cache.writing(file) as part:
            if self.cache.is_whole(file):  # another process had it in hand
                part.unlink(missing_ok=True)
                return
            for _ in range(_HASH_ATTEMPTS):
                self._receive(file, part)
                if self.cache.digest_of(part, file) == file.digest:
                    self.cache.accept(file)
                    return
                part.write_bytes(b"")
        raise FetchFailed(
            Reason.CORRUPT,
            f"{file.name} arrived {_HASH_ATTEMPTS} times with another content than the hub "
            "states; a proxy may change it",
        )

    def _receive(self, file: RemoteFile, part: Path) -> None:
        waiting = Waiting(self.patience_s)
        while (have := part.stat().st_size) != file.size:
            try:
                self._get(file, part, 0 if have > file.size else have)
            except Exception as error:  # every kind the client has; what cannot pass is raised
                if not passes_by_itself(error):
                    raise
                if part.stat().st_size > have:
                    waiting.progressed()
                if not waiting.pause(retry_after_s(error)):
                    raise

    def _get(self, file: RemoteFile, part: Path, start: int) -> None:
        headers = build_hf_headers(library_name="swiftlm") | {"Accept-Encoding": "identity"}
        url = hf_hub_url(self.repo, file.name, revision=self.commit)
        constants.DOWNLOAD_CHUNK_SIZE = CHUNK_BYTES
        with part.open("r+b") as f:
            f.seek(start)
            f.truncate()
            http_get(
                url,
                f,
                resume_size=start,
                headers=headers,
                expected_size=file.size,
                displayed_filename=file.name,
                _nb_retries=0,  # patience is ours; its own five tries would multiply with it
            )
