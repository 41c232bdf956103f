"""Lists and loads ask one planner: the same calibration, the same disk, the same verdict."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from calibrations import record
from fakes import stored_model
from model_headers import Quant, decoder, write_model
from planned_models import DENSE_8B, MOE_30B, mac

from swiftlm_engine.brain.disk_speed import DiskSpeed
from swiftlm_engine.brain.facts import SizeFacts, estimated_facts
from swiftlm_engine.brain.plan import MachineLimits, Plan
from swiftlm_proto.paths import under
from swiftlmd.calibration import CalibrationStore
from swiftlmd.config.settings import Settings
from swiftlmd.planning.disk_speeds import DiskSpeeds
from swiftlmd.planning.planner import ModelPlanner, load_conditions

MACHINE = mac(64, 48.0)


class Rig:
    def __init__(self, root: Path, machine: MachineLimits) -> None:
        self.machine, self.measured = machine, 0
        self.kept = CalibrationStore(root / "calibration")

        def limits(*, committed_bytes: int, returning_bytes: int) -> MachineLimits:
            return machine

        disks = DiskSpeeds(root / "disk-speeds.json", self._disk)
        self.planner = ModelPlanner(under(root), limits, disks, self.kept)

    def _disk(self, files: object, record_bytes: int) -> DiskSpeed:
        self.measured += 1
        return DiskSpeed(record_bytes, 4, 2e9, 1.8e9, 2.2e9)

    def listed(self, folder: Path, *, here: bool = True) -> Plan:
        return self.planner.weigh(folder, Settings(), self.machine, here=here)

    async def loaded(self, folder: Path) -> dict[str, dict[str, list[float]]]:
        model = replace(stored_model("m"), path=folder)
        placed = await self.planner.place(model, Settings(), held_bytes=0, returning_bytes=0)
        return json.loads(placed.plan)


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    return write_model(tmp_path / "dense", DENSE_8B, decoder(DENSE_8B, Quant(4)))


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    return write_model(tmp_path / "moe", MOE_30B, decoder(MOE_30B, Quant(4)))


def bounds(plan: Plan) -> list[float]:
    return [round(plan.speed.decode.low, 2), round(plan.speed.decode.high, 2)]


async def test_a_calibration_changes_the_list_as_it_changes_the_load(
    tmp_path: Path, dense: Path
) -> None:
    rig = Rig(tmp_path, MACHINE)
    before = rig.listed(dense)
    rig.kept.keep(
        "m", before.facts.fingerprint, "4-bit", MACHINE, load_conditions(before), record(), 0.0
    )
    after = rig.listed(dense)
    assert bounds(after) != bounds(before)
    assert after.measured.record is not None
    assert (await rig.loaded(dense))["speed"]["decode_tokens_s"] == bounds(after)


async def test_a_streamed_model_is_listed_with_the_disk_that_its_load_measures(
    tmp_path: Path, mixture: Path
) -> None:
    rig = Rig(tmp_path, mac(16, 10.67))
    listed = rig.listed(mixture)
    assert rig.measured == 1
    assert (await rig.loaded(mixture))["speed"]["decode_tokens_s"] == bounds(listed)


def test_no_disk_is_measured_by_files_that_are_not_here(tmp_path: Path, mixture: Path) -> None:
    rig = Rig(tmp_path, mac(16, 10.67))
    rig.listed(mixture, here=False)
    rig.planner.weigh(
        estimated_facts("o/m", SizeFacts(17 * 10**9, 0.1)), Settings(), rig.machine, here=False
    )
    assert rig.measured == 0
