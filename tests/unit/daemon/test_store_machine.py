"""Random lives of a store: whatever comes together, nothing whole is lost or hidden.

Pulls, imports, conversions, repairs and removals start, go on step by step, are cancelled and left;
the daemon stops or is killed and starts again; other programs change the hub's cache; unreadable
folders appear. After every operation:
- what is whole on the disk is listed as ready, with the very bytes that were asked for;
- no two jobs write one place;
and at the end, with everything let go: no job, no note and no half-made folder is left.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from fake_hub import model_files
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from store_doubles import StoreWorld, commit_of, digest, made_of

from swiftlmd.faults import ServiceError
from swiftlmd.store import ModelSource, PullProgress, reader
from swiftlmd.store.pulls import Pulls

REPO, FILE, BUILT_IN = "org/a", "model-Q8_0.gguf", "smollm2-135m"
FIRST = model_files(1500, seed=1)
SECOND = model_files(1500, seed=2)
GGUFS = {"alice/A-GGUF": b"GGUF of alice", "bob/B-GGUF": b"GGUF of bob, longer"}
IMPORTS = {"x.gguf": b"a file", "y.gguf": b"another file"}
NAMES = ("model-Q8_0", "one", "two", BUILT_IN, REPO)


class Life:
    """One store after another on one disk, and what must be whole on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.homes = 0
        self.world = StoreWorld(folder / "home0", held=True)
        self.world.hub = {REPO: FIRST, **{name: {FILE: c} for name, c in GGUFS.items()}}
        self.store = self.world.store()
        self.running: list[asyncio.Task[PullProgress]] = []
        self.wrong: list[BaseException] = []
        self.commits: set[str] = set()  # of REPO, whole in the cache
        self.folders: dict[str, str] = {}  # of the models folder: name to digest of its source
        (folder / "home0").mkdir(parents=True)
        (folder / "home0" / "wheel").write_bytes(b"wheel")
        for name, content in IMPORTS.items():
            (folder / name).write_bytes(content)

    @property
    def home(self) -> Path:
        return self.folder / f"home{self.homes}"

    @property
    def models(self) -> Path:
        return self.home / "app" / "models"

    @property
    def snapshots(self) -> Path:
        return self.home / "hub" / "models--org--a" / "snapshots"

    # What a user does.

    async def pull(self, number: int) -> None:
        name = (REPO, REPO, *GGUFS, BUILT_IN)[number % 5]
        if name in GGUFS:
            include = [FILE] if number % 2 else ["*.gguf"]
            save_as = ("", "", "one")[number % 3]
            self._start(self.store.pull(name, "", include, save_as), self._made(GGUFS[name]))
        elif name == BUILT_IN:
            self._start(self.store.pull(name), self._made(b"wheel"))
        else:
            revision = ("", "main")[number % 2]
            self._start(self.store.pull(name, revision), self._fetched)

    async def import_file(self, number: int) -> None:
        file = sorted(IMPORTS)[number % 2]
        steps = self.store.import_gguf(self.folder / file, ("one", "two")[number // 2 % 2])
        self._start(steps, self._made(IMPORTS[file]))

    async def convert(self, number: int) -> None:
        found = await self.store.find(NAMES[number % len(NAMES)])
        if found is not None:
            steps = self.store.quantise(found.name, ("one", "two")[number // 5 % 2])
            self._start(steps, self._made(None, str(found.path)))

    async def repair(self, number: int) -> None:
        name = (REPO, BUILT_IN)[number % 2]
        self._start(
            self.store.repair(name), self._fetched if name == REPO else self._made(b"wheel")
        )

    async def pack(self, number: int) -> None:
        self._start(self.store.pack(NAMES[number % len(NAMES)]), None)

    async def remove(self, number: int) -> None:
        name = NAMES[number % len(NAMES)]
        found = await self.store.find(name)
        try:
            await self.store.remove(name, dry_run=True)
            await self.check()
            await self.store.remove(name)
        except ServiceError:
            return
        assert found is not None
        if found.source is ModelSource.HUB:
            self.commits.discard(found.path.name)
        else:
            self.folders.pop(name, None)
            assert not found.path.exists()

    async def cancel(self, number: int) -> None:
        await self.store.cancel((*NAMES, *GGUFS)[number % 7])

    async def leave(self, number: int) -> None:
        if self.running:
            self.running[number % len(self.running)].cancel()

    async def step(self, number: int) -> None:
        await self.world.step(number)

    # What happens to the daemon.

    async def restart(self, number: int) -> None:
        await self.store.close()
        await self._settle()
        self._begin()

    async def kill(self, number: int) -> None:
        """The disk as it is at this moment; nothing of the old process does anything to it."""
        old = self.home
        self.homes += 1
        await asyncio.get_running_loop().run_in_executor(None, self._copy, old)
        await self.store.close()
        await self._settle()
        shutil.rmtree(old)
        self.world.folder = self.home
        self._begin()

    # What others do.

    async def new_commit(self, number: int) -> None:
        self.world.hub[REPO] = (FIRST, SECOND)[number % 2]

    async def touch(self, number: int) -> None:
        """Another program asks for a tokenizer alone, of a commit that is not here."""
        self._link("d" * 40, {n: c for n, c in SECOND.items() if not n.endswith(".safetensors")})

    async def fetch_elsewhere(self, number: int) -> None:
        files = (FIRST, SECOND)[number % 2]
        self._link(commit_of(files), files)
        self.commits.add(commit_of(files))

    async def lose_a_file(self, number: int) -> None:
        """A program that cleans the cache takes a file of a commit."""
        for place in sorted(self.snapshots.glob("*"))[number % 3 :][:1]:
            for link in sorted(place.glob("*.safetensors"))[:1]:
                link.unlink()
            self.commits.discard(place.name)

    async def bad_folder(self, number: int) -> None:
        bad = self.models / f"bad{number % 2}"
        shutil.rmtree(bad, ignore_errors=True)
        (bad / "config.json").mkdir(parents=True)
        (self.home / "hub" / "models--org--bad" / "snapshots").mkdir(parents=True, exist_ok=True)
        loop = self.home / "hub" / "models--org--bad" / "snapshots" / "loop"
        if not loop.is_symlink():
            loop.symlink_to("loop")

    # What must hold.

    async def check(self) -> None:
        listed = {model.name: model for model in await self.store.list()}
        self._learn_commits()  # a pull that a new daemon resumed has no follower here
        if self.commits:
            found = listed[REPO]
            assert found.ready, found.reason
            assert found.path.name in self.commits
            held = {path.name: path.read_bytes() for path in found.path.iterdir()}
            assert commit_of(held) == found.path.name
        for name, source in self.folders.items():
            assert listed[name].ready, listed[name].reason
            assert made_of(self.models / name) == source
        assert not self.world.shared
        if self.wrong:
            raise self.wrong[0]

    async def end(self) -> None:
        self.world.held = False
        while self.world.waiting:
            await self.world.step()
        await asyncio.wait_for(asyncio.gather(*self.running, return_exceptions=True), 20)
        for _ in range(50):  # what a new daemon resumed has no follower here
            await self._settle()
        assert not self.store.downloads()
        await self.check()
        assert self.store._records.pulls.all() == []
        await self.store.close()
        hidden = [path.name for path in self.models.glob(".*")]
        assert hidden == []

    def _begin(self) -> None:
        self.running.clear()
        self.store = self.world.store()
        self.store.resume()

    def _start(
        self,
        steps: AsyncGenerator[PullProgress, None],
        succeeded: Callable[[PullProgress], None] | None,
    ) -> None:
        async def follow() -> PullProgress:
            async with aclosing(steps):
                async for report in steps:
                    latest = report
            if succeeded is not None:
                succeeded(latest)
            return latest

        task = asyncio.create_task(follow())
        task.add_done_callback(self._ended)
        self.running.append(task)

    def _ended(self, task: asyncio.Task[PullProgress]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ServiceError):
            self.wrong.append(error)

    def _made(self, content: bytes | None, source: str = "") -> Callable[[PullProgress], None]:
        expected = source if content is None else digest(content)

        def made(last: PullProgress) -> None:
            if (self.models / last.model).is_dir():  # not removed meanwhile
                assert made_of(self.models / last.model) == expected
                self.folders[last.model] = expected

        return made

    def _fetched(self, last: PullProgress) -> None:
        assert last.model == REPO
        self._learn_commits()

    def _learn_commits(self) -> None:
        for place in self.snapshots.glob("*"):
            held = {path.name: path.read_bytes() for path in place.iterdir() if path.exists()}
            if commit_of(held) == place.name:
                self.commits.add(place.name)

    def _link(self, commit: str, files: dict[str, bytes]) -> None:
        place = self.snapshots / commit
        place.mkdir(parents=True, exist_ok=True)
        root = place.parents[1]
        (root / "blobs").mkdir(exist_ok=True)
        (root / "refs").mkdir(exist_ok=True)
        for name, content in files.items():
            blob = root / "blobs" / f"theirs-{digest(content)[:32]}"
            blob.write_bytes(content)
            (place / name).unlink(missing_ok=True)
            (place / name).symlink_to(f"../../blobs/{blob.name}")
        (root / "refs" / "main").write_text(commit)

    def _copy(self, old: Path) -> None:
        shutil.copytree(old, self.home, symlinks=True)

    async def _settle(self) -> None:
        for _ in range(80):
            await asyncio.sleep(0)


OPERATIONS: dict[str, int] = {
    "pull": 6, "import_file": 3, "convert": 2, "repair": 2, "pack": 1, "remove": 3, "cancel": 2,
    "leave": 2, "step": 12, "restart": 1, "kill": 2, "new_commit": 1, "touch": 1,
    "fetch_elsewhere": 1, "lose_a_file": 1, "bad_folder": 1,
}  # fmt: skip
operation = st.tuples(
    st.sampled_from([name for name, weight in OPERATIONS.items() for _ in range(weight)]),
    st.integers(0, 59),
)


async def inline(work: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """In place of a thread: the order of everything is then that of the list of operations."""
    await asyncio.sleep(0)
    return work(*args, **more)


async def live(folder: Path, operations: list[tuple[str, int]]) -> None:
    life = Life(folder)
    with pytest.MonkeyPatch.context() as patch:
        life.world.play(patch)
        patch.setattr(asyncio, "to_thread", inline)
        # A busy machine is no slow disk.
        patch.setattr(reader.FolderReader.__init__, "__defaults__", (60.0,))
        try:
            for name, number in operations:
                verb: Callable[[int], Awaitable[None]] = getattr(life, name)
                await verb(number)
                await life._settle()
                await life.check()
            await life.end()
        finally:
            for task in life.running:
                task.cancel()
            await asyncio.gather(*life.running, return_exceptions=True)
            await life.store.close()
            shutil.rmtree(folder)


def run(folder: Path, operations: list[tuple[str, int]]) -> None:
    asyncio.run(live(Path(tempfile.mkdtemp(dir=folder)), operations))


CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@seed(24)
@settings(max_examples=60, deadline=None, suppress_health_check=CHECKS, database=None)
@given(operations=st.lists(operation, max_size=14))
def test_nothing_whole_is_lost_or_hidden(tmp_path: Path, operations: list[tuple[str, int]]) -> None:
    run(tmp_path, operations)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None, suppress_health_check=CHECKS)
@given(operations=st.lists(operation, max_size=60))
def test_nothing_whole_is_lost_or_hidden_for_long(
    tmp_path: Path, operations: list[tuple[str, int]]
) -> None:
    run(tmp_path, operations)


def test_the_machine_sees_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be worth nothing if it could not fail."""

    def forget(self: Pulls, wanted: object) -> str:
        return "model-Q8_0" if (self._paths.models / "model-Q8_0").is_dir() else ""

    monkeypatch.setattr(Pulls, "_here", forget)  # identity by the name of a file
    steps = [("step", 0)] * 12
    with pytest.raises(AssertionError):
        run(tmp_path, [("pull", 7), *steps, ("pull", 3), *steps])
