"""What the daemon tells of itself: doctor's checks, the memory report, the kept ratios, heat."""

from __future__ import annotations

import asyncio
import ctypes
import json
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeClock, FakeLoadedEngine, FakeMemory, settle, stored_model
from live_daemon import eventually

from swiftlm_proto import messages as m
from swiftlm_proto.exit_codes import DaemonExit
from swiftlm_proto.paths import under
from swiftlmd.admin import doctor as doctor_module
from swiftlmd.admin.doctor import Doctor
from swiftlmd.admin.self_check import SelfCheck
from swiftlmd.config.settings import Settings
from swiftlmd.memory import RatioStore, Reading
from swiftlmd.memory.machine import wired_without_owner
from swiftlmd.memory.thermal import MacThermal
from swiftlmd.residency.crashes import CrashRecord
from swiftlmd.residency.memory_report import PriceCheck, memory_report
from swiftlmd.residency.resident import Resident, State

PLAN = json.dumps(
    {
        "terms": [
            {"kind": "weights", "bytes": 900},
            {"kind": "process", "bytes": 100},
            {"kind": "kv", "bytes": 5000},
        ]
    }
)


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    works = SelfCheck("mlx", DaemonExit.STAY_DOWN, "0.32.4 Device(cpu, 0)")
    monkeypatch.setattr(doctor_module, "mlx_check", lambda: works)
    machine = m.MachineStatus(device="cpu", memory_bytes=10, available_bytes=5, pressure="normal")
    paths = under(tmp_path)
    paths.models.mkdir()
    return Doctor(paths, {}, Settings, lambda: machine, list, tmp_path, "linux")


def found(checks: list[m.DoctorCheck]) -> dict[str, m.DoctorCheck]:
    return {check.name: check for check in checks}


async def test_a_sound_daemon_passes_and_every_check_gives_its_reason(doctor: Doctor) -> None:
    checks = await doctor.examine()
    assert all(check.reason for check in checks)
    assert not [check.name for check in checks if check.status == "fail"]
    assert {"device", "memory", "BLAS", "open files", "disk", "address", "models"} <= set(
        found(checks)
    )


async def test_a_device_that_does_not_compute_fails(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = SelfCheck("mlx", DaemonExit.NO_DEVICE, "No Metal device available")
    monkeypatch.setattr(doctor_module, "mlx_check", lambda: broken)
    check = found(await doctor.examine())["device"]
    assert check.status == "fail"
    assert "No Metal device available" in check.reason


async def test_a_public_address_without_a_key_fails_and_names_the_mend(doctor: Doctor) -> None:
    public = replace(doctor, settings=lambda: Settings(http_host="0.0.0.0"))
    check = found(await public.examine())["address"]
    assert check.status == "fail"
    assert "config set http.host" in check.fix


async def test_a_missing_certificate_file_fails(doctor: Doctor) -> None:
    wrong = replace(doctor, settings=lambda: Settings(hub_ca_bundle="/nowhere/ca.pem"))
    assert found(await wrong.examine())["downloads"].status == "fail"


async def test_a_folder_that_hangs_keeps_nobody_waiting(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_module, "_FOLDER_S", 0.0)
    check = found(await doctor.examine())["models"]
    assert check.status == "fail"
    assert "does not answer" in check.reason


async def test_a_folder_that_may_not_be_read_names_the_grant(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: object) -> list[str]:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(doctor_module.os, "listdir", denied)
    check = found(await doctor.examine())["models"]
    assert check.status == "fail"
    assert "Full Disk Access" in check.reason


def test_few_open_files_are_warned_of() -> None:
    assert doctor_module._open_files(256).status == "warn"
    assert doctor_module._open_files(16384).status == "pass"
    assert doctor_module._open_files(resource.RLIM_INFINITY).status == "pass"


class Residents:
    def __init__(self, *residents: Resident) -> None:
        self.residents = list(residents)


async def resident(clock: FakeClock, stats: m.EngineStats) -> Resident:
    found = Resident(stored_model("a"), Settings(), CrashRecord(clock), 60.0)
    found.state, found.priced_bytes, found.plan = State.READY, 6000, PLAN
    found.engine = FakeLoadedEngine("a", 7, FakeMemory(), 0)
    found.engine.stats = stats
    return found


async def test_the_ratio_of_measured_to_priced_is_kept_once_per_load(tmp_path: Path) -> None:
    clock, ratios = FakeClock(), RatioStore(tmp_path / "ratios.json")
    stats = m.EngineStats(footprint_bytes=1600, pool_bytes=300, kv_bytes=150, prefix_cache_bytes=50)
    model = await resident(clock, stats)
    model.engine.client.busy.set()
    task = asyncio.create_task(PriceCheck(Residents(model), ratios, clock).run())
    await clock.advance(10)
    assert ratios.get("a:") is None  # not while it works
    model.engine.client.busy.clear()
    await clock.advance(2)
    await eventually(lambda: ratios.get("a:"))
    await clock.advance(10)
    kept = ratios.get("a:")
    assert kept is not None
    assert (kept.last, kept.samples) == (1.1, 1)
    task.cancel()
    await settle()


async def test_on_a_card_with_memory_of_its_own_weights_are_added_to_the_process(
    tmp_path: Path,
) -> None:
    clock, ratios = FakeClock(), RatioStore(tmp_path / "ratios.json")
    stats = m.EngineStats(footprint_bytes=150, active_bytes=950, pool_bytes=300, kv_bytes=50)
    model = await resident(clock, stats)
    model.engine.loaded = m.LoadedModel(model="a", device="cuda")
    task = asyncio.create_task(PriceCheck(Residents(model), ratios, clock).run())
    await clock.advance(2)
    await eventually(lambda: ratios.get("a:"))
    assert ratios.get("a:").last == 1.05
    task.cancel()
    await settle()


async def test_the_memory_report_shows_price_beside_measure(tmp_path: Path) -> None:
    clock = FakeClock()
    held = {"weights": 880, "kv": 0, "scratch": 40}
    model = await resident(clock, m.EngineStats(footprint_bytes=1600, measured=held))
    ratios = RatioStore(tmp_path / "ratios.json")
    ratios.record("a:", 1000, 1100, 1e9)

    class Machine:
        reserve_bytes = 5

        def status(self, models: list[m.ModelStatus]) -> m.MachineStatus:
            return m.MachineStatus(memory_bytes=100, budget_bytes=80)

    report = memory_report(Residents(model), Machine(), ratios, "calm")
    assert report["priced_bytes"] == 6000
    assert report["budget_bytes"] == 80
    row = report["models"][0]
    assert row["measured"]["footprint_bytes"] == 1600
    terms = [(t["kind"], t["priced_bytes"], t["measured_bytes"]) for t in row["terms"]]
    assert terms == [
        ("weights", 900, 880),
        ("kv", 5000, 0),
        ("scratch", 0, 40),
        ("process", 100, None),
    ]
    assert row["ratio_at_rest"] == 1.1
    assert report["reserve_bytes"] == 5
    json.dumps(report)


@pytest.mark.parametrize(
    ("wired_gb", "engines", "told"),
    [(40, 0, True), (40, 1, False), (5, 0, False), (None, 0, False)],
)
def test_memory_that_stays_wired_without_a_model_is_told(
    wired_gb: int | None, engines: int, told: bool
) -> None:
    wired = None if wired_gb is None else wired_gb * 10**9
    reading = Reading(64 * 10**9, 20 * 10**9, 0, wired_bytes=wired)
    assert bool(wired_without_owner(reading, engines)) == told


class NotifyLibrary:
    """libnotify as the Mac answers: status codes, and a state through a pointer."""

    def __init__(self, state: int, status: int = 0) -> None:
        self.state, self.status = state, status

    def notify_register_check(self, name: bytes, token: Any) -> int:
        assert name == b"com.apple.system.thermalpressurelevel"
        token._obj.value = 3
        return self.status

    def notify_get_state(self, token: ctypes.c_int, state: Any) -> int:
        assert token.value == 3
        state._obj.value = self.state
        return self.status


@pytest.mark.parametrize(
    ("state", "level"), [(0, "nominal"), (1, "moderate"), (4, "sleeping"), (30, "level 30")]
)
def test_heat_is_read_in_the_systems_words(state: int, level: str) -> None:
    assert MacThermal(NotifyLibrary(state)).level() == level


def test_a_mac_that_does_not_say_is_not_guessed_at() -> None:
    assert MacThermal(NotifyLibrary(2, status=1_000_000)).level() == ""
