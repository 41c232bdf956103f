"""`engine.draft` names a model as every other name does, and says early that it cannot be used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import FakeStore, stored_model
from model_headers import Quant, decoder, write_model
from planned_models import DENSE_8B, mac

from swiftlm_engine.brain.plan import MachineLimits
from swiftlm_proto.paths import under
from swiftlmd.calibration.store import CalibrationStore
from swiftlmd.config.settings import Settings
from swiftlmd.engines.placement import Placement
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.planning.disk_speeds import DiskSpeeds
from swiftlmd.planning.draft import draft_source
from swiftlmd.planning.planner import ModelPlanner


async def place(tmp_path: Path, draft: str) -> Placement:
    folder = write_model(tmp_path / "big", DENSE_8B, decoder(DENSE_8B, Quant(4)))
    machine = mac(64, 48.0)

    def limits(*, committed_bytes: int, returning_bytes: int) -> MachineLimits:
        return machine

    store = FakeStore(stored_model("small"), stored_model("cut", reason="weights are missing"))
    disks = DiskSpeeds(tmp_path / "disk-speeds.json")
    records = CalibrationStore(tmp_path)
    planner = ModelPlanner(under(tmp_path), limits, disks, records, None, store.find)
    model = replace(stored_model("big"), path=folder)
    settings = Settings(engine_draft=draft)
    return await planner.place(model, settings, held_bytes=0, returning_bytes=0)


async def test_a_draft_model_is_known_by_its_name(tmp_path: Path) -> None:
    assert (await place(tmp_path, "small")).request.draft == "/models/small"


@pytest.mark.parametrize("word", ["", "off", "ngram"])
async def test_words_that_name_no_model_stay(tmp_path: Path, word: str) -> None:
    assert (await place(tmp_path, word)).request.draft == word


async def test_the_owner_may_name_a_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    draft = str(tmp_path / "mine")
    assert (await place(tmp_path, draft)).request.draft == draft


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        ("elsewhere", "not here.*swiftlmctl pull elsewhere"),
        ("org/none", "not here.*swiftlmctl pull org/none"),
        ("cut", "weights are missing"),
        ("/no/such/folder", "holds no model"),
    ],
)
async def test_a_draft_model_that_cannot_be_used_is_named_before_an_engine_starts(
    tmp_path: Path, draft: str, words: str
) -> None:
    with pytest.raises(ServiceError, match=f"draft model '{draft}'.*{words}") as failed:
        await place(tmp_path, draft)
    assert failed.value.kind is Kind.MODEL_BROKEN


async def test_of_two_models_of_a_name_the_drafts_folder_is_the_stores() -> None:
    """A relative path is nobody's: the daemon's working directory holds no models."""
    with pytest.raises(ServiceError, match="not here"):
        await draft_source("some/folder", FakeStore().find)
