"""The Store service over a real socket: what swiftlmctl sees of adopting, finding and weighing."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_hub import FakeHub, model_files, store_options
from gguf import GGMLQuantizationType as Type
from grpclib.client import Channel
from grpclib.server import Server
from tiny_gguf import write_gguf
from tiny_models import make_model

from swiftlm_engine.brain.facts import ModelFacts, read_model
from swiftlm_engine.brain.plan import (
    Accelerator,
    MachineLimits,
    Plan,
    PlanRequest,
    make_plan,
)
from swiftlm_proto import messages as m
from swiftlm_proto.paths import under
from swiftlmd.residency.resident import stored_status
from swiftlmd.store import ModelStore, catalogue
from swiftlmd.store.service import Basis, StoreService

NAME = "org/tiny-mlx"
GB = 10**9


@pytest.fixture
async def hub() -> AsyncIterator[FakeHub]:
    async with FakeHub() as hub:
        hub.add(NAME, model_files())
        yield hub


@pytest.fixture
def store(hub: FakeHub, tmp_path: Path) -> ModelStore:
    return ModelStore(under(tmp_path / "app"), store_options(hub, tmp_path))


@pytest.fixture
async def stub(store: ModelStore, tmp_path: Path) -> AsyncIterator[m.StoreStub]:
    async def planning() -> Basis:
        machine = MachineLimits(
            16 * GB,
            accelerator=Accelerator.METAL,
            working_set_bytes=16 * GB,
            reserve_bytes=0,
        )

        def plan(name: str, source: Path | ModelFacts, *, here: bool) -> Plan:
            facts = source if isinstance(source, ModelFacts) else read_model(source)
            request = PlanRequest(context=128) if name == "short" else PlanRequest()
            return make_plan(facts, request, machine)

        return Basis(plan)

    async def refresh() -> list[m.ModelStatus]:
        return [stored_status(model) for model in await store.list()]

    server = Server([StoreService(store, planning, refresh)])
    await server.start(path=str(tmp_path / "s"))
    channel = Channel(path=str(tmp_path / "s"))
    try:
        yield m.StoreStub(channel)
    finally:
        channel.close()
        server.close()
        await server.wait_closed()


async def events(steps: AsyncIterator[m.OperationEvent]) -> list[m.OperationEvent]:
    async with asyncio.timeout(60):
        return [event async for event in steps]


async def drained(steps: AsyncIterator[object]) -> None:
    async for _ in steps:
        pass


async def test_added_folder_is_shown_as_listed(stub: m.StoreStub, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, content in model_files().items():
        (folder / name).write_bytes(content)
    reply = await stub.add(m.AddModelRequest(path=str(folder), name="other"))
    assert reply.fault is None
    assert reply.model is not None
    assert (reply.model.model, reply.model.source) == ("other", "local")
    refused = await stub.add(m.AddModelRequest(path=str(tmp_path)))
    assert refused.fault is not None
    assert "no config.json" in refused.fault.message


async def test_import_ends_in_the_model_or_in_one_fault(stub: m.StoreStub, tmp_path: Path) -> None:
    model = await asyncio.to_thread(make_model, "llama", tmp_path / "m")
    file = await asyncio.to_thread(write_gguf, model, tmp_path / "t.gguf", "llama", Type.Q8_0)
    seen = await events(stub.import_(m.ImportModelRequest(path=str(file), name="t")))
    assert [e.done for e in seen] == [False] * (len(seen) - 1) + [True]
    assert "no loss" in seen[-1].detail
    assert seen[-1].model is not None
    assert seen[-1].model.state is m.ModelStatusState.CACHED
    again = await events(stub.import_(m.ImportModelRequest(path=str(file), name="t")))
    assert again[-1].fault is not None
    assert "is here already" in again[-1].fault.message


async def test_convert_and_repair_travel_as_operations(
    stub: m.StoreStub, store: ModelStore, tmp_path: Path
) -> None:
    await store.add(await asyncio.to_thread(make_model, "llama", tmp_path / "big"))
    seen = await events(stub.convert(m.ConvertModelRequest(model="big", bits=8, group_size=32)))
    assert seen[-1].model is not None
    assert (seen[-1].model.model, seen[-1].model.quantization) == ("big-8bit", "8-bit g32")
    refused = await events(stub.repair(m.RepairModelRequest(model="big")))
    assert refused[-1].fault is not None
    assert "does not know where" in refused[-1].fault.message
    missing = await events(stub.repair(m.RepairModelRequest(model="none")))
    assert missing[-1].fault is not None


async def test_pack_and_its_removal_travel_as_operations(
    stub: m.StoreStub, store: ModelStore, tmp_path: Path
) -> None:
    folder = await asyncio.to_thread(make_model, "qwen3_moe", tmp_path / "experts")
    await store.add(folder)
    before = sorted(folder.iterdir())
    seen = await events(stub.pack(m.PackModelRequest(model="experts")))
    assert seen[-1].fault is None
    assert "as fast as the checkpoint" in seen[-1].detail
    assert len(list(folder.iterdir())) == len(before) + 2
    seen = await events(stub.pack(m.PackModelRequest(model="experts", remove=True)))
    assert "freed" in seen[-1].detail
    assert sorted(folder.iterdir()) == before
    await store.add(await asyncio.to_thread(make_model, "llama", tmp_path / "dense"))
    refused = await events(stub.pack(m.PackModelRequest(model="dense")))
    assert refused[-1].fault is not None
    assert "llama" in refused[-1].fault.message


async def test_catalogue_has_a_verdict_for_each_model(stub: m.StoreStub, hub: FakeHub) -> None:
    reply = await stub.search(m.SearchModelsRequest())
    assert len(reply.models) > 20
    verdicts = {x.model: x.fit.verdict for x in reply.models if x.fit}
    assert verdicts["mlx-community/Qwen3-0.6B-4bit"] == "fits"
    assert verdicts["mlx-community/Qwen3-30B-A3B-Instruct-2507-4bit"] == "streams"
    assert verdicts["mlx-community/Qwen3.5-397B-A17B-4bit"] == "too large"
    best = [purpose for x in reply.models for purpose in x.best_for]
    assert {"fastest", "largest"} <= set(best)  # the machine of these tests is slow for agents
    fitting = await stub.search(m.SearchModelsRequest(fits=True))
    assert {x.model for x in fitting.models} < verdicts.keys()
    assert {x.fit.verdict for x in fitting.models if x.fit} <= {"fits", "tight", "streams"}
    assert not hub.log  # the catalogue is data: nobody was asked


async def test_search_becomes_exact_when_it_is_refreshed(stub: m.StoreStub) -> None:
    rough = (await stub.search(m.SearchModelsRequest(text="tiny"))).models
    exact = (await stub.search(m.SearchModelsRequest(text="tiny", refresh=True))).models
    assert [x.model for x in rough] == [x.model for x in exact] == [NAME]
    assert rough[0].fit is not None
    assert exact[0].fit is not None
    assert (rough[0].fit.estimated, exact[0].fit.estimated) == (True, False)
    assert exact[0].size_bytes == sum(
        len(content)
        for name, content in model_files().items()
        if name not in ("README.md", "pytorch_model.bin")
    )


async def test_refreshed_catalogue_says_what_the_repositories_say(
    stub: m.StoreStub, store: ModelStore, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "mlx-community/Qwen3-0.6B-4bit"
    alone = tuple(entry for entry in catalogue.entries() if entry.repo == name)
    monkeypatch.setattr(catalogue, "entries", lambda: alone)  # one child process each
    template = {"tokenizer_config.json": b'{"chat_template": "{{ tools }}"}'}
    files = model_files(2_000_000) | template
    hub.add(name, files)

    async def row(refresh: bool) -> m.OfferedModel:
        reply = await stub.search(m.SearchModelsRequest(refresh=refresh))
        assert reply.fault is None
        return reply.models[0]

    about, exact = await row(refresh=False), await row(refresh=True)
    assert about.size_bytes > 300_000_000
    left_out = ("README.md", "pytorch_model.bin")
    assert exact.size_bytes == sum(len(c) for n, c in files.items() if n not in left_out)
    assert (exact.context, exact.quantization, exact.tools) == (256, "float16", True)
    assert (exact.here, exact.reasoning, exact.title) == (False, False, about.title)
    await drained(store.pull(name))
    assert (await row(refresh=False)).here


async def test_fit_covers_what_is_here_and_what_is_not(
    stub: m.StoreStub, store: ModelStore, tmp_path: Path
) -> None:
    await store.add(await asyncio.to_thread(make_model, "llama", tmp_path / "here"))
    short = await asyncio.to_thread(make_model, "llama", tmp_path / "short")
    await store.add(short)
    fits = (await stub.fit(m.FitModelsRequest())).fits
    contexts = {name: found.context for name, found in fits.items()}
    assert contexts == {"here": 256, "short": 128}  # its own settings hold for it
    reply = await stub.fit(m.FitModelsRequest(models=[NAME]))
    assert reply.fits[NAME].verdict == "fits"
    assert reply.fits[NAME].decode_high > 0
    absent = await stub.fit(m.FitModelsRequest(models=["org/none"]))
    assert absent.fault is not None


async def test_usage_names_what_can_be_removed(stub: m.StoreStub, store: ModelStore) -> None:
    async for _ in store.pull(NAME):
        pass
    reply = await stub.usage(m.DiskUsageRequest())
    row = next(row for row in reply.rows if row.name == NAME)
    assert row.removable
    assert reply.total_bytes == sum(row.disk_bytes for row in reply.rows)
    assert reply.free_bytes > 0
