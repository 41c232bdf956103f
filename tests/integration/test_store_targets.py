"""Two jobs never share what they write, and a name never stands for another model's bytes."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from fake_hub import FakeHub, store_options, until
from tiny_gguf import write_gguf
from tiny_models import make_model

from swiftlm_proto.paths import under
from swiftlmd.faults import ServiceError
from swiftlmd.store import ModelStore, PullProgress
from swiftlmd.store.errors import PullCancelled

FILE = "model-Q8_0.gguf"


@pytest.fixture(scope="module")
def ggufs(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """Two different models."""
    made = []
    for layers in (1, 2):
        folder = tmp_path_factory.mktemp("source")
        make_model("llama", folder, num_hidden_layers=layers)
        made.append(write_gguf(folder, folder / "x.gguf", "llama").read_bytes())
    return made[0], made[1]


@pytest.fixture
async def hub() -> AsyncIterator[FakeHub]:
    async with FakeHub() as hub:
        yield hub


@pytest.fixture
async def store(hub: FakeHub, tmp_path: Path) -> AsyncIterator[ModelStore]:
    store = ModelStore(under(tmp_path / "app"), store_options(hub, tmp_path))
    yield store
    await store.close()


async def last(steps: AsyncGenerator[PullProgress, None]) -> PullProgress:
    async with asyncio.timeout(60), aclosing(steps):
        return [report async for report in steps][-1]


def layers(folder: Path, name: str) -> int:
    config = folder / "app" / "models" / name / "config.json"
    return int(json.loads(config.read_text())["num_hidden_layers"])


async def test_a_file_of_the_same_name_is_not_another_repository_s_model(
    hub: FakeHub, store: ModelStore, tmp_path: Path, ggufs: tuple[bytes, bytes]
) -> None:
    include = FILE
    hub.add("alice/A-GGUF", {FILE: ggufs[0]})
    hub.add("bob/B-GGUF", {FILE: ggufs[1]})
    assert (await last(store.pull("alice/A-GGUF", include=[include]))).model == "model-Q8_0"
    before = hub.body_bytes(FILE)
    with pytest.raises(ServiceError, match=r"is here already and is .*alice/A-GGUF.*--name"):
        await last(store.pull("bob/B-GGUF", include=[include]))
    assert hub.body_bytes(FILE) == before  # told before a byte was fetched
    assert layers(tmp_path, "model-Q8_0") == 1
    again = await last(store.pull("alice/A-GGUF", include=[include]))
    assert (again.model, again.detail) == ("model-Q8_0", "already here")
    assert not list((tmp_path / "app" / "cache" / "gguf").iterdir())


async def test_two_imports_to_one_name_are_not_both_run(
    store: ModelStore, tmp_path: Path, ggufs: tuple[bytes, bytes]
) -> None:
    for name, content in zip(("a.gguf", "b.gguf"), ggufs, strict=True):
        (tmp_path / name).write_bytes(content)
    first = asyncio.create_task(last(store.import_gguf(tmp_path / "a.gguf", "same")))
    await until(lambda: bool(store.downloads()))
    with pytest.raises(ServiceError) as caught:
        await last(store.import_gguf(tmp_path / "b.gguf", "same"))
    assert caught.value.code == "name_in_use"
    assert (await first).model == "same"
    assert layers(tmp_path, "same") == 1


async def test_an_import_is_cancelled_by_the_name_it_is_shown_under(
    store: ModelStore, tmp_path: Path, ggufs: tuple[bytes, bytes]
) -> None:
    (tmp_path / "mine.gguf").write_bytes(ggufs[0])
    running = asyncio.create_task(last(store.import_gguf(tmp_path / "mine.gguf")))
    await until(lambda: bool(store.downloads()))
    (name,) = [d.name for d in store.downloads()]
    assert await store.cancel(name)
    with pytest.raises(PullCancelled):
        await running
    assert await store.list() == []
