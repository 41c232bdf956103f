"""What the hub offers, and what it would cost here, before a byte of weights is fetched."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_hub import FakeHub, Status, model_files, store_options
from tiny_models import make_model

from swiftlm_engine.brain.facts import read_model
from swiftlm_proto.paths import under
from swiftlmd.faults import ServiceError
from swiftlmd.store import ModelStore, Stage

NAME = "org/tiny"


@pytest.fixture
async def hub() -> AsyncIterator[FakeHub]:
    async with FakeHub() as hub:
        yield hub


def store(hub: FakeHub, folder: Path, **changes: object) -> ModelStore:
    return ModelStore(under(folder / "app"), store_options(hub, folder, **changes))


async def test_outline_gives_the_facts_of_the_whole_model(hub: FakeHub, tmp_path: Path) -> None:
    files = model_files(3_000_000, shards=3)
    hub.add(NAME, files)
    models = store(hub, tmp_path)
    outline = await models.outline(NAME)
    fetched = hub.body_bytes()
    async for _ in models.pull(NAME):
        pass
    whole = await models.find(NAME)
    assert whole is not None
    told, real = read_model(outline.path), read_model(whole.path)
    assert dataclasses.replace(told, path=real.path) == real
    assert outline.size_bytes == whole.size_bytes
    assert (outline.commit, outline.licence, outline.gated) == (whole.revision, "apache-2.0", False)
    assert fetched < len(files["config.json"]) + 3 * 110_000
    assert sum(p.stat().st_blocks * 512 for p in outline.path.iterdir()) < 200_000


async def test_outline_is_asked_for_once(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(NAME, model_files())
    models = store(hub, tmp_path)
    assert models.known_outline(NAME) is None
    first = await models.outline(NAME)
    asked = len(hub.log)
    assert await models.outline(NAME) == first == models.known_outline(NAME)
    offline = store(hub, tmp_path, offline=True)
    assert await offline.outline(NAME) == first
    assert len(hub.log) == asked


async def test_outline_of_what_is_not_there_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    models = store(hub, tmp_path)
    with pytest.raises(ServiceError) as caught:
        await models.outline("org/none")
    assert caught.value.code == "absent"
    assert not list((tmp_path / "app" / "cache" / "outlines").iterdir())


async def test_search_shows_what_the_hub_says(hub: FakeHub, tmp_path: Path) -> None:
    hub.add("org/one-mlx", model_files())
    hub.add("org/two-mlx", model_files(), gated=True)
    hub.add("org/other", model_files())
    hub.fail_listings(Status(503))
    found = await store(hub, tmp_path).search("MLX")
    assert [(o.repo, o.gated) for o in found] == [("org/one-mlx", False), ("org/two-mlx", True)]
    first = found[0]
    assert (first.size_bytes, first.quantization, first.licence) == (5000, "4-bit", "apache-2.0")
    assert first.runs_here


async def test_search_offline_says_so(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(ServiceError) as caught:
        await store(hub, tmp_path, offline=True).search("x")
    assert caught.value.code == "offline"
    assert not hub.log


@pytest.mark.parametrize("answers", [False, True])
async def test_search_without_a_network_ends_within_two_seconds(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """Where connections are refused, and where packets vanish."""
    monkeypatch.setattr("swiftlmd.store.hub._CONNECT_S", 0.2)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    async def vanish(*_: object, **__: object) -> None:
        await asyncio.sleep(60)

    models = store(hub, tmp_path, endpoint="http://127.0.0.1:1")
    if not answers:
        monkeypatch.setattr(asyncio, "open_connection", vanish)
    began = time.monotonic()
    with pytest.raises(ServiceError, match="cannot be reached") as caught:
        await models.search("qwen3")
    assert caught.value.code == "unreachable"
    assert time.monotonic() - began < 2.0


async def test_smaller_copy_is_made_of_a_local_model(hub: FakeHub, tmp_path: Path) -> None:
    folder = await asyncio.to_thread(make_model, "llama", tmp_path / "big")
    models = store(hub, tmp_path)
    await models.add(folder)
    seen = [report async for report in models.quantise("big")]
    assert (seen[-1].stage, seen[-1].model) == (Stage.DONE, "big-4bit")
    assert "bits per weight" in seen[-1].detail
    small, big = await models.find("big-4bit"), await models.find("big")
    assert small is not None
    assert big is not None
    assert (small.ready, small.quantization) == (True, "4-bit g64")
    assert small.size_bytes < big.size_bytes
    with pytest.raises(ServiceError, match="quantized already"):
        async for _ in models.quantise("big-4bit"):
            pass
    assert not list((tmp_path / "app" / "models").glob(".*"))


async def test_usage_counts_every_folder(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(NAME, model_files(400_000))
    models = store(hub, tmp_path)
    async for _ in models.pull(NAME):
        pass
    await models.outline(NAME)
    usage = await models.usage()
    rows = {row.name: row for row in usage.rows}
    assert rows[NAME].removable
    assert 400_000 < rows[NAME].disk_bytes < 600_000
    assert not rows["cache: outlines"].removable
    assert usage.total_bytes == sum(row.disk_bytes for row in usage.rows)
    assert usage.free_bytes > 0
