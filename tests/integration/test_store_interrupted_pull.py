"""Pulls that are cancelled, joined, killed, resumed: no byte after a stop, none fetched twice."""

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest
from fake_hub import FakeHub, Slow, model_files, store_options, until

from swiftlm_proto.paths import under
from swiftlmd.faults import ServiceError
from swiftlmd.store import ModelStore, PullProgress, Stage
from swiftlmd.store.errors import PullCancelled
from swiftlmd.store.fetch.download import CHUNK_BYTES
from swiftlmd.store.fetch.request import PART_SUFFIX

NAME = "org/tiny"
WEIGHTS = "model.safetensors"
SIZE = 1_000_000


@pytest.fixture
async def hub() -> AsyncIterator[FakeHub]:
    async with FakeHub() as hub:
        hub.add(NAME, model_files(SIZE))
        yield hub


@pytest.fixture
async def models(hub: FakeHub, tmp_path: Path) -> AsyncIterator[ModelStore]:
    store = new_store(hub, tmp_path)
    yield store
    await store.close()


def new_store(hub: FakeHub, folder: Path) -> ModelStore:
    return ModelStore(under(folder / "app"), store_options(hub, folder))


async def pull(store: ModelStore) -> list[PullProgress]:
    async with asyncio.timeout(60):
        return [report async for report in store.pull(NAME)]


async def until_half(store: ModelStore) -> None:
    """Follows a pull until about half is there, then leaves it."""
    async with aclosing(store.pull(NAME)) as reports:
        async for report in reports:
            if report.stage is Stage.DOWNLOAD and report.done_bytes > SIZE // 4:
                return


def fetchers() -> list[psutil.Process]:
    """Fetching processes below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "swiftlmd.store.fetch" in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


async def complete(store: ModelStore) -> bool:
    model = await store.find(NAME)
    return model is not None and model.ready


async def test_leaving_the_last_follower_stops_every_byte(hub: FakeHub, models: ModelStore) -> None:
    hub.misbehave(WEIGHTS, Slow(300_000))
    await until_half(models)
    assert not fetchers()
    assert not models.downloads()
    model = await models.find(NAME)
    assert model is not None
    assert not model.ready
    assert "not complete" in model.reason


async def test_cancel_ends_the_pull_for_its_followers(hub: FakeHub, models: ModelStore) -> None:
    hub.misbehave(WEIGHTS, Slow(100_000))
    task = asyncio.create_task(pull(models))
    await until(lambda: any(d.progress.done_bytes for d in models.downloads()))
    assert await models.cancel(NAME)
    with pytest.raises(PullCancelled):
        await task
    assert not fetchers()
    assert not await models.cancel(NAME)


async def test_second_pull_joins_the_first(hub: FakeHub, models: ModelStore) -> None:
    hub.misbehave(WEIGHTS, Slow(1_000_000))
    await asyncio.gather(pull(models), pull(models), pull(models))
    assert hub.body_bytes(WEIGHTS) == len(hub.repos[NAME].files[WEIGHTS])
    assert len([s for s in hub.log if s.path.startswith("/api/")]) == 1


async def test_one_of_two_followers_may_leave(hub: FakeHub, models: ModelStore) -> None:
    hub.misbehave(WEIGHTS, Slow(500_000))
    staying = asyncio.create_task(pull(models))
    await asyncio.sleep(0)
    await until_half(models)
    await staying
    assert await complete(models)


async def test_failure_reaches_every_follower(hub: FakeHub, models: ModelStore) -> None:
    del hub.repos[NAME]
    ends = await asyncio.gather(pull(models), pull(models), return_exceptions=True)
    assert [type(e).__name__ for e in ends] == ["PullFailed", "PullFailed"]


async def test_next_daemon_goes_on_where_the_last_one_stopped(
    hub: FakeHub, models: ModelStore, tmp_path: Path
) -> None:
    hub.misbehave(WEIGHTS, Slow(300_000))
    following = asyncio.create_task(pull(models))
    await until(lambda: any(d.progress.done_bytes > SIZE // 4 for d in models.downloads()))
    await models.close()
    with pytest.raises(ServiceError):
        await following
    before = hub.body_bytes(WEIGHTS)

    fresh = new_store(hub, tmp_path)
    fresh.resume()
    await until(lambda: complete(fresh))
    await until(lambda: not fresh.downloads())
    await fresh.close()
    size = len(hub.repos[NAME].files[WEIGHTS])
    in_flight = 1 << 20  # what the sockets held when the first process was killed
    assert before > SIZE // 4
    assert hub.body_bytes(WEIGHTS) <= size + CHUNK_BYTES + in_flight

    again = new_store(hub, tmp_path)
    again.resume()
    assert not again.downloads()
    await again.close()


async def test_cancelled_pull_is_not_resumed(
    hub: FakeHub, models: ModelStore, tmp_path: Path
) -> None:
    hub.misbehave(WEIGHTS, Slow(300_000))
    await until_half(models)
    fresh = new_store(hub, tmp_path)
    fresh.resume()
    await asyncio.sleep(0)
    assert not fresh.downloads()
    await fresh.close()


async def kept_after_kill(store: ModelStore, at: int, blobs: Path) -> int | None:
    """Kills the fetching process when `at` bytes have arrived, and says how many of the weights
    stay on the disk; None when it was done before.
    """
    killed: list[int] = []
    async with aclosing(store.pull(NAME)) as reports:
        try:
            async for report in reports:
                if report.done_bytes >= at and report.stage is Stage.DOWNLOAD:
                    for process in fetchers():
                        os.kill(process.pid, signal.SIGKILL)
                        killed.append(process.pid)
        except ServiceError:
            if not killed:
                raise
            return max(part_sizes(blobs), default=None)
    return None


async def killed_often(
    hub: FakeHub, models: ModelStore, blobs: Path, times: int, seed: int
) -> None:
    size = len(hub.repos[NAME].files[WEIGHTS])
    moments = sorted(random.Random(seed).sample(range(size), times))
    hub.misbehave(WEIGHTS, *[Slow(size / times)] * (times + 1))
    kept = [await kept_after_kill(models, moment, blobs) for moment in moments]
    await pull(models)
    model = await models.find(NAME)
    assert model is not None
    assert (model.path / WEIGHTS).read_bytes() == hub.repos[NAME].files[WEIGHTS]
    starts = [s.start for s in hub.log if s.path.startswith("/cdn/")]
    assert starts[0] == 0
    assert starts[1:] == [x for x in kept if x is not None]  # not one byte on disk came twice
    assert len(starts) > times // 2
    assert not part_sizes(blobs)


async def test_kill_at_random_bytes_costs_nothing_but_time(
    hub: FakeHub, models: ModelStore, tmp_path: Path
) -> None:
    await killed_often(hub, models, blobs_in(tmp_path), times=5, seed=1)


@pytest.mark.slow
async def test_fifty_kills_cost_nothing_but_time(
    hub: FakeHub, models: ModelStore, tmp_path: Path
) -> None:
    hub.add(NAME, model_files(20_000_000))
    await killed_often(hub, models, blobs_in(tmp_path), times=50, seed=2)


def part_sizes(blobs: Path) -> list[int]:
    return [part.stat().st_size for part in blobs.glob(f"*{PART_SUFFIX}")]


def blobs_in(folder: Path) -> Path:
    return folder / "hub" / f"models--{NAME.replace('/', '--')}" / "blobs"


DAEMON = """
import asyncio, os, sys
from pathlib import Path
from swiftlm_proto.paths import under
from swiftlmd.store import ModelStore, StoreOptions

async def main(folder, url):
    options = StoreOptions(
        environ=dict(os.environ), home=folder, hub_cache=folder / "hub", endpoint=url, spare_bytes=0
    )
    async for report in ModelStore(under(folder), options).pull("org/tiny"):
        print(report.done_bytes, flush=True)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


async def test_fetching_process_dies_with_its_daemon(hub: FakeHub, tmp_path: Path) -> None:
    hub.misbehave(WEIGHTS, Slow(100_000))
    daemon = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        DAEMON,
        str(tmp_path),
        hub.url,
        env=dict(store_options(hub, tmp_path).environ),
        stdout=asyncio.subprocess.PIPE,
    )
    assert daemon.stdout is not None
    while int(await daemon.stdout.readline()) == 0:
        pass
    orphans = fetchers()
    assert len(orphans) == 1
    daemon.kill()
    await daemon.wait()
    gone, alive = await asyncio.to_thread(psutil.wait_procs, orphans, 5)
    assert (len(gone), alive) == (1, [])
