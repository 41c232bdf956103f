"""Pulls from a hub that behaves, cuts, stalls, lies and refuses, by the real hub client."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_hub import (
    Cut,
    FakeHub,
    IgnoreRange,
    Other,
    Slow,
    Stall,
    Status,
    model_files,
    store_options,
)

from swiftlm_proto.paths import under
from swiftlmd.faults import ServiceError
from swiftlmd.store import ModelStore, PullProgress, Stage
from swiftlmd.store.fetch.download import CHUNK_BYTES

NAME = "org/tiny"
WEIGHTS = "model.safetensors"
NEEDED = {"config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS}


@pytest.fixture
async def hub() -> AsyncIterator[FakeHub]:
    async with FakeHub() as hub:
        yield hub


def store(hub: FakeHub, folder: Path, **changes: object) -> ModelStore:
    return ModelStore(under(folder / "app"), store_options(hub, folder, **changes))


async def pull(store: ModelStore, name: str = NAME, revision: str = "") -> list[PullProgress]:
    async with asyncio.timeout(60):
        return [report async for report in store.pull(name, revision)]


async def refusal(store: ModelStore, name: str = NAME, revision: str = "") -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await pull(store, name, revision)
    assert "\n" not in caught.value.message
    return caught.value


async def content(store: ModelStore, name: str = NAME) -> dict[str, bytes]:
    model = await store.find(name)
    assert model is not None
    assert model.ready, model.reason
    return {p.name: p.read_bytes() for p in model.path.iterdir()}


async def test_pull_brings_exactly_what_a_load_needs(hub: FakeHub, tmp_path: Path) -> None:
    files = model_files()
    repo = hub.add(NAME, files)
    models = store(hub, tmp_path)
    await pull(models)
    assert await content(models) == {name: files[name] for name in NEEDED}
    found = await models.find(NAME)
    assert found is not None
    assert found.revision == repo.commit


async def test_sharded_model_is_fetched_by_its_index(hub: FakeHub, tmp_path: Path) -> None:
    files = model_files(shards=3)
    files["model-old.safetensors"] = b"not in the index"
    hub.add(NAME, files)
    models = store(hub, tmp_path)
    await pull(models)
    assert "model-old.safetensors" not in await content(models)


async def test_hub_client_finds_what_was_pulled(hub: FakeHub, tmp_path: Path) -> None:
    import huggingface_hub

    hub.add(NAME, model_files())
    await pull(store(hub, tmp_path))
    cache = tmp_path / "hub"
    found = huggingface_hub.try_to_load_from_cache(NAME, WEIGHTS, cache_dir=cache)
    assert str(found).endswith(WEIGHTS)
    report = huggingface_hub.scan_cache_dir(cache)
    assert not report.warnings
    assert [r.repo_id for r in report.repos] == [NAME]


async def test_cached_model_never_touches_the_network(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(NAME, model_files())
    await pull(store(hub, tmp_path))
    asked = len(hub.log)
    # Not told to be offline, and the hub within reach: it is not asked all the same.
    assert (await pull(store(hub, tmp_path)))[-1].detail == "already here"
    assert len(hub.log) == asked
    for unreachable in ({"endpoint": "http://127.0.0.1:9"}, {"offline": True}):
        model = await store(hub, tmp_path, **unreachable).find(NAME)
        assert model is not None
        assert model.ready, model.reason


async def test_listing_costs_one_request_however_many_files(hub: FakeHub, tmp_path: Path) -> None:
    files = model_files() | {f"extra/{i}.txt": b"x" for i in range(1000)}
    hub.add(NAME, files)
    await pull(store(hub, tmp_path))
    listings = [s for s in hub.log if s.path.startswith("/api/")]
    small = [s for s in hub.log if "/resolve/" in s.path]
    assert (len(listings), len(small)) == (1, len(NEEDED))


async def test_progress_is_monotone_with_an_exact_denominator(hub: FakeHub, tmp_path: Path) -> None:
    files = model_files(600_000)
    hub.add(NAME, files)
    hub.misbehave(WEIGHTS, Slow(400_000))
    reports = [r for r in await pull(store(hub, tmp_path)) if r.stage is Stage.DOWNLOAD]
    total = sum(len(files[name]) for name in NEEDED)
    done = [r.done_bytes for r in reports]
    assert {r.total_bytes for r in reports} == {total}
    assert done == sorted(done)
    assert done[-1] == total
    assert any(0 < d < total for d in done)
    assert any(r.bytes_per_s > 0 and r.eta_s > 0 for r in reports)


@pytest.mark.parametrize(
    "faults",
    [
        [Cut(after=250_000)],
        [Cut(after=0), Cut(after=10), Cut(after=100_000)],
        [Stall(after=250_000)],
        [Status(503), Status(502)],
        [Status(429, {"Retry-After": "1"})],
        [Cut(after=250_000), IgnoreRange()],
        [Other(b"x" * 300_000)],
        [Other(b"x" * 500_000)],
        [Other(b"x" * 100, honest_length=False)],
        [Other(b"x" * 400_048)],
    ],
    ids=lambda faults: "-".join(type(f).__name__ for f in faults),
)
async def test_pull_survives(hub: FakeHub, tmp_path: Path, faults: list[object]) -> None:
    files = model_files(400_000)
    hub.add(NAME, files)
    hub.misbehave(WEIGHTS, *faults)
    models = store(hub, tmp_path)
    await pull(models)
    assert (await content(models))[WEIGHTS] == files[WEIGHTS]


async def test_busy_listing_is_asked_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(NAME, model_files())
    hub.fail_listings(Status(503), Status(429, {"Retry-After": "1"}))
    models = store(hub, tmp_path)
    await pull(models)
    assert await content(models)


async def test_content_that_never_fits_its_hash_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    files = model_files(400_000)
    hub.add(NAME, files)
    hub.misbehave(WEIGHTS, *[Other(b"x" * len(files[WEIGHTS]))] * 4)
    models = store(hub, tmp_path)
    assert (await refusal(models)).code == "corrupt"
    found = await models.find(NAME)
    assert found is None or not found.ready


async def test_stalled_for_good_is_told(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(NAME, model_files(400_000))
    hub.misbehave(WEIGHTS, *[Stall(after=0)] * 50)
    error = await refusal(store(hub, tmp_path, patience_s=2.0))
    assert error.code == "stalled"


async def test_hub_that_stays_busy_is_told(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(NAME, model_files())
    hub.fail_listings(*[Status(503)] * 20)
    error = await refusal(store(hub, tmp_path, patience_s=2.0))
    assert (error.code, error.status) == ("hub_busy", 503)


async def test_reasons_are_told_apart(hub: FakeHub, tmp_path: Path) -> None:
    hub.add("org/gated", model_files(), gated=True)
    hub.add("org/private", model_files(), private=True)
    hub.add("org/open", model_files())
    hub.tokens["plain"] = set()
    plain = {"environ": {"HF_TOKEN": "plain"}}
    wrong = {"environ": {"HF_TOKEN": "wrong"}}

    async def code(name: str, revision: str = "", **changes: object) -> tuple[str, int]:
        error = await refusal(store(hub, tmp_path, **changes), name, revision)
        return error.code, error.status

    assert await code("org/gated") == ("gated", 403)
    assert await code("org/gated", **plain) == ("gated", 403)
    assert await code("org/open", **wrong) == ("bad_token", 401)
    assert await code("org/none") == ("absent", 404)
    assert await code("org/private", **plain) == ("absent", 404)
    assert await code("org/open", "v9") == ("no_revision", 404)
    assert await code("org/open", offline=True) == ("offline", 503)
    assert await code("org/open", endpoint="http://127.0.0.1:9") == ("unreachable", 503)


async def test_access_granted_by_token_is_used(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(NAME, model_files(), gated=True)
    hub.tokens["good"] = {NAME}
    models = store(hub, tmp_path, environ={"HF_TOKEN": "good"})
    await pull(models)
    assert await content(models)


async def test_repository_without_safetensors_says_what_it_has(
    hub: FakeHub, tmp_path: Path
) -> None:
    config = {"config.json": b"{}"}
    hub.add("org/pickled", config | {"pytorch_model.bin": b"x"})
    hub.add("org/gguf", config | {"a-Q4_0.gguf": b"x", "a-Q8_0.gguf": b"x"})
    hub.add("org/empty", config)
    models = store(hub, tmp_path)
    assert "pickled" in (await refusal(models, "org/pickled")).message
    assert "--include NAME: a-Q4_0.gguf" in (await refusal(models, "org/gguf")).message
    assert "no weights" in (await refusal(models, "org/empty")).message


@pytest.mark.parametrize("name", ["../../escape", "/etc/passwd", "a\\..\\b", "bell\x07", "./x"])
async def test_unsafe_file_names_are_refused(hub: FakeHub, tmp_path: Path, name: str) -> None:
    hub.add(NAME, model_files(), listed=[name])
    error = await refusal(store(hub, tmp_path))
    assert error.code == "unsafe_name"
    assert hub.body_bytes() == 0


async def test_index_that_points_outside_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    files = model_files()
    index = {"weight_map": {"x": "../../../secret.safetensors"}}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    hub.add(NAME, files)
    assert (await refusal(store(hub, tmp_path))).code == "unsafe_name"


async def test_full_disk_is_told_before_the_first_byte(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(NAME, model_files())
    error = await refusal(store(hub, tmp_path, spare_bytes=1 << 60))
    assert (error.code, error.status) == ("disk_full", 507)
    assert hub.body_bytes() == 0


async def test_revision_stays_pinned_until_another_is_asked_for(
    hub: FakeHub, tmp_path: Path
) -> None:
    old, new = model_files(seed=1), model_files(seed=2)
    models = store(hub, tmp_path)
    hub.add(NAME, old)
    await pull(models)
    hub.add(NAME, new)
    await pull(models)
    assert (await content(models))[WEIGHTS] == old[WEIGHTS]
    await pull(models, revision="main")
    assert (await content(models))[WEIGHTS] == new[WEIGHTS]


async def test_repair_finds_a_flipped_byte(hub: FakeHub, tmp_path: Path) -> None:
    files = model_files()
    hub.add(NAME, files)
    models = store(hub, tmp_path)
    await pull(models)
    model = await models.find(NAME)
    assert model is not None
    blob = (model.path / WEIGHTS).resolve()
    damaged = bytearray(blob.read_bytes())
    damaged[-1] ^= 1
    blob.write_bytes(damaged)
    async for _ in models.repair(NAME):
        pass
    assert (await content(models))[WEIGHTS] == files[WEIGHTS]


async def test_nothing_is_fetched_twice_beyond_a_chunk(hub: FakeHub, tmp_path: Path) -> None:
    files = model_files(2_000_000)
    hub.add(NAME, files)
    hub.misbehave(WEIGHTS, Cut(after=700_000), Cut(after=500_000))
    await pull(store(hub, tmp_path))
    assert hub.body_bytes(WEIGHTS) <= len(files[WEIGHTS]) + 2 * CHUNK_BYTES
