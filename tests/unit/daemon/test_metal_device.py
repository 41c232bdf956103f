"""Whose numbers of the Metal device plans are made with, and that a missing device is seen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_metal import GIB, FakeMetalLibraries

from swiftlm_engine.brain.plan import Accelerator
from swiftlm_proto import messages as m
from swiftlm_proto.exit_codes import DaemonExit
from swiftlm_proto.paths import under
from swiftlmd.admin import doctor as doctor_module
from swiftlmd.admin.doctor import Doctor
from swiftlmd.admin.self_check import SelfCheck
from swiftlmd.config.settings import Settings
from swiftlmd.memory import Device, DeviceSource, Reading
from swiftlmd.memory.devices import ObjectiveC, mac_device, parse_device_info
from swiftlmd.memory.machine import Machine

M4_MAX = Device(Accelerator.METAL, "Apple M4 Max", 107 * GIB, 80 * GIB)
INFO = {
    "device_name": "Apple M4 Max",
    "architecture": "applegpu_g16s",
    "max_recommended_working_set_size": 107 * GIB,
    "max_buffer_length": 80 * GIB,
    "memory_size": 128 * GIB,
}


def never() -> Device:
    raise AssertionError("MLX is asked only where the daemon sees no device")


def read(metal: FakeMetalLibraries) -> Device:
    return mac_device(lambda: ObjectiveC(metal.load), never)


def test_a_service_finds_the_device_though_there_is_no_default_one() -> None:
    metal = FakeMetalLibraries(default_device=False)
    assert read(metal) == M4_MAX
    assert metal.asked == ["all"]


def test_core_graphics_is_loaded_before_metal_is_asked() -> None:
    metal = FakeMetalLibraries(all_devices=0)
    assert read(metal) == M4_MAX
    assert metal.loaded.index("CoreGraphics") < metal.loaded.index("Metal")
    assert metal.asked == ["all", "default"]


def test_where_the_daemon_sees_no_device_mlx_is_asked() -> None:
    metal = FakeMetalLibraries(all_devices=0, default_device=False)
    device = mac_device(
        lambda: ObjectiveC(metal.load), lambda: parse_device_info(f"hello\n{json.dumps(INFO)}\n")
    )
    assert device == replace(M4_MAX, source=DeviceSource.ENGINE)


def missing(path: str) -> object:
    raise OSError(f"dlopen({path}): image not found")


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"memory_size": 5}', "NaN"])
def test_a_device_that_nobody_sees_is_assumed_and_loud(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    device = mac_device(
        lambda: ObjectiveC(missing), lambda: parse_device_info(text), lambda: "Apple M9 Hyper"
    )
    assert device == Device(Accelerator.METAL, "Apple M9 Hyper", source=DeviceSource.ASSUMED)
    assert any(record.levelname == "ERROR" for record in caplog.records)


class FixedReadings:
    def total_bytes(self) -> int:
        return 24 * GIB

    def available_bytes(self) -> int:
        return 20 * GIB

    def footprint_bytes(self, pid: int) -> int:
        return 0

    def read(self, pids: object) -> Reading:
        return Reading(24 * GIB, 20 * GIB, 0)


class NoHeat:
    def level(self) -> str:
        return "nominal"


def machine(device: Device) -> Machine:
    return Machine(device, FixedReadings(), lambda: None, Settings, NoHeat())


ASSUMED = Device(Accelerator.METAL, source=DeviceSource.ASSUMED)


def test_without_a_working_set_a_plan_gets_two_thirds_of_the_memory_and_is_wired() -> None:
    limits = machine(ASSUMED).limits(committed_bytes=0, returning_bytes=0)
    found = {limit.name: limit.bytes for limit in limits.limits()}
    assert found["metal working set"] == 16 * GIB


def test_status_and_warnings_say_that_no_device_is_visible() -> None:
    status = machine(ASSUMED).status([])
    assert (status.device_source, status.working_set_bytes) == ("assumed", 0)
    (warning,) = machine(ASSUMED).warnings()
    assert "no Metal device is visible" in warning
    assert "swiftlmctl restart" in warning


def test_what_an_engine_reports_is_planned_with_and_a_difference_is_said() -> None:
    own = machine(Device(Accelerator.METAL, "Apple M4", 16 * GIB, 12 * GIB))
    assert own.warnings() == []
    assert not own.engine_reported(m.DeviceInfo("Apple M4", "", 24 * GIB, 16 * GIB, 12 * GIB))
    assert own.warnings() == []
    assert own.engine_reported(m.DeviceInfo("Apple M4", "", 24 * GIB, 10 * GIB, 9 * GIB))
    limits = own.limits(committed_bytes=0, returning_bytes=0)
    assert (limits.working_set_bytes, limits.max_buffer_bytes) == (10 * GIB, 9 * GIB)
    assert own.status([]).device_source == "engine"
    (warning,) = own.warnings()
    assert "10.7 GB" in warning
    assert "17.2 GB" in warning


def test_an_engine_ends_the_assumption() -> None:
    own = machine(ASSUMED)
    assert own.engine_reported(m.DeviceInfo("Apple M4", "", 24 * GIB, 16 * GIB, 12 * GIB))
    assert own.warnings() == []


@pytest.mark.parametrize("info", [None, m.DeviceInfo(), m.DeviceInfo("cpu", "x86_64", 5)])
def test_an_engine_that_reports_no_working_set_changes_nothing(info: m.DeviceInfo | None) -> None:
    own = machine(M4_MAX)
    assert not own.engine_reported(info)
    assert own.limits(committed_bytes=0, returning_bytes=0).working_set_bytes == 107 * GIB


@pytest.mark.parametrize(
    ("used", "info", "status", "said"),
    [
        (107 * GIB, json.dumps(INFO), "pass", "as MLX reports it"),
        (96 * GIB, json.dumps(INFO), "fail", "MLX reports 114.9 GB"),
        (0, json.dumps(INFO), "fail", "no Metal device was visible"),
        (107 * GIB, "", "warn", "does not tell"),
    ],
)
async def test_doctor_compares_the_plans_device_with_mlx(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    used: int,
    info: str,
    status: str,
    said: str,
) -> None:
    works = SelfCheck("mlx", DaemonExit.STAY_DOWN, "0.32.4 Device(gpu, 0)", info)
    monkeypatch.setattr(doctor_module, "mlx_check", lambda: works)
    shown = m.MachineStatus(device="metal", device_name="Apple M4 Max", working_set_bytes=used)
    doctor = Doctor(under(tmp_path), {}, Settings, lambda: shown, list, tmp_path, "darwin")
    check = {check.name: check for check in await doctor.examine()}["Metal limits"]
    assert check.status == status
    assert said in check.reason
    assert ("swiftlmctl restart" in check.fix) == (status == "fail")
