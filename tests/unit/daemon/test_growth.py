"""What each request costs does not grow with what lies on the disk."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeClock, FakeLauncher, FakeMemory, FakePlanner, FakeStore, stored_model

from swiftlm_proto import messages as m
from swiftlmd.config.settings import Settings
from swiftlmd.faults import ModelNotFound
from swiftlmd.http import admin_operations
from swiftlmd.http.admin_operations import ReplyTexts, to_json
from swiftlmd.lifecycle.instance import this_instance
from swiftlmd.memory import Device
from swiftlmd.memory.machine import Machine
from swiftlmd.residency.residency import Residency
from swiftlmd.serving.admission import Admission
from swiftlmd.serving.service import DaemonInfo, Service
from swiftlmd.store import StoredModel

GB = 10**9
MODELS = 1000


class NoThermal:
    def level(self) -> str:
        return ""


class World:
    def __init__(self) -> None:
        clock, memory = FakeClock(), FakeMemory()
        self.store = FakeStore(*(stored_model(f"org/{i}", GB) for i in range(MODELS)))
        settings = Settings(models_default="org/0")
        self.residency = Residency(
            clock=clock,
            store=self.store,
            planner=FakePlanner(memory),
            launcher=FakeLauncher(memory),
            footprint=memory.footprint_bytes,
            settings=lambda: settings,
        )
        self.service = Service(
            clock=clock,
            about=DaemonInfo(this_instance("1", "x"), "none", Path("c"), Path("l")),
            settings=lambda: settings,
            residency=self.residency,
            store=self.store,
            machine=Machine(Device(), Any, lambda: None, lambda: settings, NoThermal()),
            admission=Admission(Any),
        )


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    async with made.residency:
        await made.service.list_models()
        yield made


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every message that was turned into JSON."""
    found: list[object] = []

    def noted(message: Any) -> Any:
        found.append(message)
        return to_json(message)

    monkeypatch.setattr(admin_operations, "to_json", noted)
    return found


async def rows(world: World, texts: ReplyTexts) -> dict[str, Any]:
    status = await world.service.status()
    told = json.loads(texts.of(status))
    assert told == to_json(status)
    return {row["model"]: row for row in told["models"]}


async def test_models_on_the_disk_are_written_into_a_status_once(
    world: World, written: list[object]
) -> None:
    texts = ReplyTexts()
    assert len(await rows(world, texts)) == MODELS
    written.clear()
    await world.service.list_models()  # somebody looked, and all is as before
    assert len(await rows(world, texts)) == MODELS
    assert len(written) == 1


async def test_a_status_says_what_has_changed(world: World, written: list[object]) -> None:
    texts = ReplyTexts()
    await rows(world, texts)
    async with world.residency.lease("org/7"):
        assert (await rows(world, texts))["org/7"]["state"] == "ready"
    world.store.models["org/8"] = replace(stored_model("org/8", GB), reason="cut", ready=False)
    del world.store.models["org/9"]
    await world.service.list_models()
    written.clear()
    found = await rows(world, texts)
    assert (found["org/7"]["state"], found["org/8"]["state"]) == ("ready", "broken")
    assert "org/9" not in found
    assert len(written) == 3  # the status, and the two models that are not as before


async def test_nobody_who_changes_a_listing_changes_the_status(world: World) -> None:
    for row in await world.service.list_models():
        row.error = "changed"
    assert {row["error"] for row in (await rows(world, ReplyTexts())).values()} == {""}


async def test_an_unknown_name_has_the_folders_listed_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, real = 0, world.store.list

    async def noted() -> list[StoredModel]:
        nonlocal listed
        listed += 1
        return await real()

    monkeypatch.setattr(world.store, "list", noted)
    service = world.service
    for ask in (
        anext(service.generate("gone", m.GenerateRequest(text="hi"), route="chat")),
        service.tokenize("gone", m.TokenizeRequest(text="hi")),
        service.embed("gone", m.EmbedRequest()),
    ):
        listed = 0
        with pytest.raises(ModelNotFound) as missing:
            await ask
        assert listed == 1
        assert len(missing.value.message) < 600
        assert "and 980 more" in missing.value.message
