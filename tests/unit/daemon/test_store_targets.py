"""Two jobs never share what they write, and a name never stands for another model's bytes."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from fake_hub import model_files, until
from store_doubles import DEAD, StoreWorld, digest, made_of

from swiftlmd.faults import ServiceError
from swiftlmd.store import ModelSource, ModelStore, PullProgress, builtin
from swiftlmd.store.errors import PullCancelled

FILE = "model-Q8_0.gguf"
A, B = b"GGUF of alice", b"GGUF of bob, longer"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreWorld:
    world = StoreWorld(tmp_path)
    world.play(monkeypatch)
    world.hub = {"alice/A-GGUF": {FILE: A}, "bob/B-GGUF": {FILE: B}}
    return world


@pytest.fixture
async def store(world: StoreWorld) -> AsyncIterator[ModelStore]:
    store = world.store()
    yield store
    world.held = False
    await store.close()


async def last(steps: AsyncGenerator[PullProgress, None]) -> PullProgress:
    async with asyncio.timeout(20), aclosing(steps):
        return [report async for report in steps][-1]


async def run_to(world: StoreWorld, task: asyncio.Task[PullProgress], jobs: int = 0) -> None:
    """Steps the held jobs until the task has ended, or until so many wait."""
    while not task.done() and not (jobs and len(world.waiting) >= jobs):
        await world.step()
        await asyncio.sleep(0.001)


def content(folder: Path, name: str) -> str:
    return made_of(folder / "app" / "models" / name)


@pytest.mark.parametrize("include", [FILE, "*Q8_0.gguf", "*"])
async def test_a_file_of_the_same_name_is_not_another_repository_s_model(
    world: StoreWorld, store: ModelStore, tmp_path: Path, include: str
) -> None:
    patterns = [include, FILE] if include == "*" else [include]
    assert (await last(store.pull("alice/A-GGUF", include=patterns))).model == "model-Q8_0"
    before = world.fetched_bytes
    with pytest.raises(ServiceError, match=r"is here already and is .*alice/A-GGUF.*--name"):
        await last(store.pull("bob/B-GGUF", include=patterns))
    assert world.fetched_bytes == before  # told before a byte was fetched
    assert content(tmp_path, "model-Q8_0") == digest(A)
    made = await last(store.pull("bob/B-GGUF", include=patterns, save_as="b"))
    assert (made.model, content(tmp_path, "b")) == ("b", digest(B))
    assert not list((tmp_path / "app" / "cache" / "gguf").iterdir())


async def test_another_revision_of_a_file_is_another_model(
    world: StoreWorld, store: ModelStore, tmp_path: Path
) -> None:
    world.hub["org/gguf"] = {FILE: A}
    await last(store.pull("org/gguf", include=[FILE]))
    world.hub["org/gguf"] = {FILE: A, "README.md": b"new"}
    assert (await last(store.pull("org/gguf", "main", [FILE]))).detail == "already here"
    world.hub["org/gguf"] = {FILE: B}
    assert (await last(store.pull("org/gguf", include=[FILE]))).detail == "already here"  # kept
    with pytest.raises(ServiceError, match="here already"):
        await last(store.pull("org/gguf", "main", [FILE]))
    assert content(tmp_path, "model-Q8_0") == digest(A)


async def test_a_model_of_unknown_origin_is_not_taken_for_the_one_asked_for(
    world: StoreWorld, store: ModelStore, tmp_path: Path
) -> None:
    await last(store.pull("alice/A-GGUF", include=[FILE]))
    (tmp_path / "app" / "models" / "model-Q8_0" / "swiftlm-origin.json").unlink()
    with pytest.raises(ServiceError, match="came from somewhere else"):
        await last(store.pull("alice/A-GGUF", include=[FILE]))


async def test_a_broken_model_is_made_again_by_the_same_pull(
    world: StoreWorld, store: ModelStore, tmp_path: Path
) -> None:
    await last(store.pull("alice/A-GGUF", include=[FILE]))
    (tmp_path / "app" / "models" / "model-Q8_0" / "model.safetensors").write_bytes(b"")
    await last(store.pull("alice/A-GGUF", include=[FILE]))
    found = await store.find("model-Q8_0")
    assert found is not None
    assert found.ready


async def test_a_name_that_an_import_or_a_folder_has_is_refused(
    world: StoreWorld, store: ModelStore, tmp_path: Path
) -> None:
    mine = tmp_path / "model-Q8_0"
    mine.mkdir()
    for name, held in model_files().items():
        (mine / name).write_bytes(held)
    await store.add(mine)
    with pytest.raises(ServiceError, match="here already"):
        await last(store.pull("alice/A-GGUF", include=[FILE]))
    (tmp_path / FILE).write_bytes(B)
    with pytest.raises(ServiceError, match="here already"):
        await last(store.import_gguf(tmp_path / FILE))
    with pytest.raises(ServiceError, match=r"built-in.*--name"):
        await last(store.import_gguf(tmp_path / FILE, "smollm2-135m"))
    found = await store.find("model-Q8_0")
    assert found is not None
    assert found.path == mine


async def test_two_pulls_from_one_repository_leave_each_other_their_bytes(
    world: StoreWorld, store: ModelStore, tmp_path: Path
) -> None:
    world.hub["org/gguf"] = {"slow.gguf": A, "quick.gguf": B}
    world.held = True
    slow = asyncio.create_task(last(store.pull("org/gguf", include=["slow.gguf"])))
    await run_to(world, slow, jobs=1)
    await world.step()  # half of it is here
    world.held = False
    assert (await last(store.pull("org/gguf", include=["quick.gguf"]))).model == "quick"
    notes = [wanted.include for wanted in store._records.pulls.all()]
    assert notes == [("slow.gguf",)]  # a killed daemon still goes on with it
    await run_to(world, slow)
    assert (await slow).model == "slow"
    assert (content(tmp_path, "slow"), content(tmp_path, "quick")) == (digest(A), digest(B))


async def test_two_pulls_that_would_make_one_folder_are_not_both_run(
    world: StoreWorld, store: ModelStore, tmp_path: Path
) -> None:
    world.held = True
    first = asyncio.create_task(last(store.pull("alice/A-GGUF", include=[FILE])))
    await run_to(world, first, jobs=1)
    await world.step()
    world.held = False
    with pytest.raises(ServiceError) as caught:
        await last(store.pull("bob/B-GGUF", include=["*.gguf"]))
    assert caught.value.code == "name_in_use"
    await run_to(world, first)
    assert (await first).model == "model-Q8_0"
    assert content(tmp_path, "model-Q8_0") == digest(A)


async def test_jobs_on_one_repository_take_turns(world: StoreWorld, store: ModelStore) -> None:
    world.hub["org/x"] = model_files(2000)
    pulled = [store.pull("org/x"), store.pull("org/x", "main"), store.pull("org/x@main")]
    names = [report.model for report in await asyncio.gather(*map(last, pulled))]
    assert names == ["org/x"] * 3
    assert world.fetched_bytes <= sum(map(len, model_files(2000).values()))  # each byte once


async def test_a_pull_and_a_pack_of_the_same_words_are_two_jobs(
    world: StoreWorld, store: ModelStore
) -> None:
    world.hub["org/x"] = model_files(2000) | {"pack": b"x"}
    await last(store.pull("org/x"))
    world.held = True
    packing = asyncio.create_task(last(store.pack("org/x")))
    await run_to(world, packing, jobs=1)
    pulling = asyncio.create_task(last(store.pull("org/x", include=["pack"])))
    await run_to(world, packing)
    await run_to(world, pulling)
    snapshot = await store.find("org/x")
    assert snapshot is not None
    assert (snapshot.path / "pack").exists()


async def test_a_job_is_cancelled_by_the_name_it_will_have(
    world: StoreWorld, store: ModelStore
) -> None:
    world.held = True
    running = asyncio.create_task(last(store.pull("alice/A-GGUF", include=[FILE])))
    await run_to(world, running, jobs=1)
    await world.step()
    assert await store.cancel("model-Q8_0")
    with pytest.raises(PullCancelled):
        await running
    assert not store._records.pulls.all()


async def test_asking_what_would_go_stops_nothing(world: StoreWorld, store: ModelStore) -> None:
    world.hub["org/dry"] = model_files(2000)
    world.held = True
    running = asyncio.create_task(last(store.pull("org/dry")))
    await run_to(world, running, jobs=1)
    await world.step()
    await store.remove("org/dry", dry_run=True)
    assert [wanted.name for wanted in store._records.pulls.all()] == ["org/dry"]
    await run_to(world, running)
    assert (await running).model == "org/dry"


async def test_removing_a_model_leaves_other_pulls_of_its_repository_alone(
    world: StoreWorld, store: ModelStore
) -> None:
    world.hub["org/both"] = model_files(2000) | {FILE: A}
    await last(store.pull("org/both"))
    world.held = True
    running = asyncio.create_task(last(store.pull("org/both", include=[FILE])))
    await run_to(world, running, jobs=1)
    await world.step()
    await store.remove("org/both")
    assert len(store._records.pulls.all()) == 1
    await run_to(world, running)
    assert (await running).model == "model-Q8_0"


async def test_a_folder_of_the_user_s_does_not_stand_for_the_built_in_model(
    world: StoreWorld, store: ModelStore, tmp_path: Path
) -> None:
    (name,) = builtin.BUILT_INS
    mine = tmp_path / "mine" / name
    mine.mkdir(parents=True)
    for file, held in model_files().items():
        (mine / file).write_bytes(held)
    with pytest.raises(ServiceError, match=r"built-in.*--name"):
        await store.add(mine)
    store._shelf.options = dataclasses.replace(store._shelf.options, folders=(tmp_path / "mine",))
    (tmp_path / "wheel").write_bytes(A)
    assert (await last(store.pull(name))).model == name
    listed = {model.name: model for model in await store.list()}
    assert listed[name].source is ModelSource.BUILT_IN
    assert listed[f"mine/{name}"].path == mine  # under another name, never hidden


async def test_a_built_in_model_that_cannot_be_made_again_stays(
    world: StoreWorld, store: ModelStore, tmp_path: Path
) -> None:
    (name,) = builtin.BUILT_INS
    (tmp_path / "wheel").write_bytes(A)
    await last(store.pull(name))
    world.fails.add("convert")
    with pytest.raises(ServiceError):
        await last(store.repair(name))
    found = await store.find(name)
    assert found is not None
    assert found.ready


async def test_folders_of_killed_conversions_are_cleared_at_the_next_start(
    store: ModelStore, tmp_path: Path
) -> None:
    left = tmp_path / "app" / "models" / f".big.{DEAD}.swiftlm-tmp"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"x" * 1000)
    store.resume()
    await until(lambda: not left.exists())
