"""The store's two children, played in process: a fetch from a hub and a conversion.

    world = StoreWorld(folder, monkeypatch)
    world.hub["org/name"] = {"config.json": b"{}", ...}
    world.held = True     # every job stops at each of its steps until `step` lets one go on

What they write and in which order is what the children do; the hub's cache is the real one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import pytest
from fake_hub import git_digest, model_files

from swiftlm_proto.paths import under
from swiftlmd.store import ModelStore, PullProgress, Stage, StoreOptions, builtin, pulls
from swiftlmd.store.conversion import Conversion, Packing, Quantisation
from swiftlmd.store.errors import PullFailed
from swiftlmd.store.fetch.cache import RepoCache
from swiftlmd.store.fetch.choice import RemoteFile
from swiftlmd.store.fetch.request import Request
from swiftlmd.store.hub import Fetched, Listed

Report = Callable[[PullProgress], None]
DEAD = 4194304  # above every process's number


@dataclass
class StoreWorld:
    """A hub, and the stores of one home after another. `fails` are verbs that end in a fault."""

    folder: Path
    hub: dict[str, dict[str, bytes]] = field(default_factory=dict)
    held: bool = False
    fails: set[str] = field(default_factory=set)
    fetched_bytes: int = 0
    waiting: list[asyncio.Future[None]] = field(default_factory=list)
    written: set[Path] = field(default_factory=set)  # by jobs that run
    shared: list[Path] = field(default_factory=list)  # what two jobs wrote at once

    def play(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pulls.hub, "fetch", self.fetch)
        monkeypatch.setattr(pulls, "convert", self.convert)
        monkeypatch.setattr(builtin, "fetch_wheel", self._wheel)
        monkeypatch.setattr(builtin, "write_advice", lambda model, folder: None)

    def store(self, home: Path | None = None) -> ModelStore:
        home = home or self.folder
        options = StoreOptions(
            environ={}, home=home, hub_cache=home / "hub", scale_dtype="float32", spare_bytes=0
        )
        return ModelStore(under(home / "app"), options)

    async def step(self, number: int = 0) -> None:
        """One of the waiting jobs goes on to its next step; without any, nothing."""
        if self.waiting:
            self.waiting.pop(number % len(self.waiting)).set_result(None)
            for _ in range(20):
                await asyncio.sleep(0)

    async def fetch(
        self,
        request: Request,
        options: StoreOptions,
        report: Report,
        check: Callable[[Listed], None] = lambda listed: None,
    ) -> Fetched:
        report(PullProgress(Stage.RESOLVE))
        await self._pause()
        if request.repo not in self.hub or "fetch" in self.fails:
            raise PullFailed(f"the hub has no '{request.repo}'", code="absent")
        files = _chosen(self.hub[request.repo], request)
        commit = commit_of(self.hub[request.repo])
        if request.revision not in ("main", commit):
            raise PullFailed(f"'{request.repo}' has no revision {request.revision}")
        listed = [_remote(name, content) for name, content in files.items()]
        check(Listed(commit, tuple(f.name for f in listed), tuple(f.digest for f in listed)))
        cache = RepoCache(Path(request.cache), request.repo)
        cache.prepare()
        with self._writing(cache.root):
            for file in listed:
                await self._receive(cache, file, files[file.name], request.recheck, report)
            snapshot = cache.link(commit, request.revision, listed)
        names = tuple(file.name for file in listed)
        return Fetched(snapshot, commit, "mit", names, sum(file.size for file in listed))

    async def _receive(
        self, cache: RepoCache, file: RemoteFile, content: bytes, recheck: bool, report: Report
    ) -> None:
        if recheck:
            cache.discard_if_wrong(file)
        if cache.is_whole(file):
            return
        with cache.writing(file) as part:
            have = part.stat().st_size
            half = len(content) // 2
            with part.open("ab") as out:
                out.write(content[have:half])
            report(PullProgress(Stage.DOWNLOAD, half, len(content)))
            await self._pause()
            with part.open("ab") as out:
                out.write(content[max(have, half) :])
            self.fetched_bytes += len(content) - have
            cache.accept(file)

    async def convert(
        self,
        job: Conversion | Quantisation | Packing,
        environ: Mapping[str, str],
        report: Report,
        check: object = None,
    ) -> None:
        report(PullProgress(Stage.CONVERT, 0, 1))
        if isinstance(job, Packing):
            await self._pause()
            return
        with self._writing(job.out):
            await self._make(job)

    @contextmanager
    def _writing(self, place: Path) -> Iterator[None]:
        if place in self.written:
            self.shared.append(place)
            raise PullFailed(f"two jobs write {place}")
        self.written.add(place)
        try:
            yield
        finally:
            self.written.discard(place)

    async def _make(self, job: Conversion | Quantisation) -> None:
        job.out.parent.mkdir(parents=True, exist_ok=True)
        draft = job.out.with_name(f".{job.out.name}.{DEAD}.swiftlm-tmp")
        draft.mkdir()
        try:
            (draft / "config.json").write_bytes(b"{")
            await self._pause()
            if job.out.exists() or "convert" in self.fails:
                raise PullFailed("could not be converted", code="not_convertible")
            content = json.dumps({"source": _identity(job.source)}).encode()
            for name, held in (model_files(2000) | {"made_of.json": content}).items():
                (draft / name).write_bytes(held)
            if isinstance(job, Conversion) and job.origin:
                (draft / "swiftlm-origin.json").write_text(job.origin)
            draft.rename(job.out)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    async def _wheel(self, *_: object) -> Path:
        await self._pause()
        return self.folder / "wheel"

    async def _pause(self) -> None:
        if self.held:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting.append(turn)
            try:
                await turn
            finally:
                if turn in self.waiting:
                    self.waiting.remove(turn)


def made_of(folder: Path) -> str:
    """The digest of the file that a folder was converted from."""
    return str(json.loads((folder / "made_of.json").read_bytes())["source"])


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def commit_of(files: Mapping[str, bytes]) -> str:
    return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


def _identity(source: Path) -> str:
    return digest(source.read_bytes()) if source.is_file() else str(source)


def _remote(name: str, content: bytes) -> RemoteFile:
    large = name.endswith((".safetensors", ".gguf"))
    return RemoteFile(name, len(content), digest(content) if large else git_digest(content), large)


def _chosen(files: Mapping[str, bytes], request: Request) -> dict[str, bytes]:
    extra = {n: c for n, c in files.items() if any(fnmatch(n, p) for p in request.include)}
    if any(name.endswith(".gguf") for name in extra):
        return extra
    if request.include and not extra:
        raise PullFailed(f"no file matches {request.include}")
    return {n: c for n, c in files.items() if not n.endswith(".gguf")}
