"""What was measured of a disk is kept, and goes into plans and to the engine."""

import json
from dataclasses import replace

import pytest
from fakes import stored_model
from model_headers import Quant, decoder, write_model
from planned_models import GIB, MOE_30B, mac

from swiftlm_engine.brain.disk_speed import DiskSpeed
from swiftlm_engine.brain.plan import MachineLimits
from swiftlm_proto.paths import under
from swiftlmd.calibration import CalibrationStore
from swiftlmd.config.settings import Settings
from swiftlmd.planning.disk_speeds import DiskSpeeds
from swiftlmd.planning.planner import ModelPlanner

RECORD = 2_654_208


class Disk:
    def __init__(self, speed: float = 2e9) -> None:
        self.speed = speed
        self.asked: list[int] = []

    def __call__(self, files, record_bytes):
        self.asked.append(record_bytes)
        return DiskSpeed(record_bytes, 4, self.speed, 0.9 * self.speed, 1.1 * self.speed)


@pytest.fixture
def folder(tmp_path):
    return write_model(tmp_path / "moe", MOE_30B, decoder(MOE_30B, Quant(4)))


async def place(tmp_path, folder, disk, machine: MachineLimits, **settings):
    def limits(*, committed_bytes, returning_bytes):
        return machine

    disks = DiskSpeeds(tmp_path / "disk-speeds.json", disk)
    planner = ModelPlanner(under(tmp_path), limits, disks, CalibrationStore(tmp_path))
    model = replace(stored_model("moe"), path=folder)
    return await planner.place(model, Settings(**settings), held_bytes=0, returning_bytes=0)


async def test_a_streamed_model_is_planned_with_its_disk_measured_once(tmp_path, folder):
    disk = Disk()
    machine = mac(16, 10.67)
    first = await place(tmp_path, folder, disk, machine)
    again = await place(tmp_path, folder, disk, machine)  # another daemon, the same file
    assert disk.asked == [RECORD]
    assert first.request == again.request
    assert first.request.ssd_threads == 4
    assert first.request.stream_experts == "experts"
    plan = json.loads(first.plan)
    assert plan["streaming"]["ssd_bytes_per_s"] == [1_800_000_000, 2_200_000_000]
    assert plan["streaming"]["ssd_measured"]


async def test_the_environment_of_a_streaming_engine_is_set_before_it_starts(tmp_path, folder):
    streamed = await place(tmp_path, folder, Disk(), mac(16, 10.67))
    assert streamed.environment == {"MLX_MAX_OPS_PER_BUFFER": "8"}
    resident = await place(tmp_path, folder, Disk(), mac(64, 48.0))
    assert resident.environment == {}


async def test_a_resident_model_has_its_disk_left_alone(tmp_path, folder):
    disk = Disk()
    placed = await place(tmp_path, folder, disk, mac(64, 48.0))
    assert disk.asked == []
    assert placed.request.stream_experts == "off"


async def test_options_of_streaming_reach_the_engine(tmp_path, folder):
    placed = await place(
        tmp_path, folder, Disk(), MachineLimits(64 * GIB),
        engine_stream_experts="on", engine_expert_slots=16, engine_top_k_experts=4,
        engine_ssd_nocache="on", engine_ssd_prefetch="next-router",
    )  # fmt: skip
    request = placed.request
    assert (request.expert_slots, request.top_k_experts) == (16, 4)
    assert (request.ssd_nocache, request.ssd_prefetch) == ("on", "next-router")
    assert "16 of 128 experts in memory" in json.loads(placed.plan)["summary"]


async def test_a_disk_that_cannot_be_measured_leaves_the_prior(tmp_path, folder):
    def broken(files, record_bytes):
        raise OSError(5, "input/output error")

    placed = await place(tmp_path, folder, broken, mac(16, 10.67))
    assert placed.fits
    assert not json.loads(placed.plan)["streaming"]["ssd_measured"]


def test_a_disk_is_measured_again_after_a_day_whatever_its_number(tmp_path, folder, monkeypatch):
    disk, now = Disk(), [1e9]
    machine, path = mac(16, 10.67), tmp_path / "disks.json"
    DiskSpeeds(path, disk, lambda: now[0]).applied(machine, folder, RECORD)
    disk.speed, real = 3e9, type(folder).stat

    class Restarted:  # the volume has another number
        def __init__(self, stat):
            self.__dict__ = {name: getattr(stat, name) for name in dir(stat) if name[:2] == "st"}
            self.st_dev += 7

    monkeypatch.setattr(type(folder), "stat", lambda self, **how: Restarted(real(self, **how)))
    kept = DiskSpeeds(path, disk, lambda: now[0] + 3600).applied(machine, folder, RECORD)
    assert kept.speed.ssd_bytes_s.high == 2.2e9
    assert disk.asked == [RECORD]
    now[0] += 25 * 3600
    later = DiskSpeeds(path, disk, lambda: now[0]).applied(machine, folder, RECORD)
    assert later.speed.ssd_bytes_s.high == pytest.approx(3.3e9)


def test_a_disk_that_cannot_be_measured_now_keeps_its_old_speed(tmp_path, folder):
    now = [1e9]
    path = tmp_path / "disks.json"
    DiskSpeeds(path, Disk(), lambda: now[0]).applied(mac(16, 10.67), folder, RECORD)
    warm = DiskSpeeds(path, lambda files, record: None, lambda: now[0] + 1e6)
    assert warm.applied(mac(16, 10.67), folder, RECORD).speed.ssd_bytes_s.high == 2.2e9
