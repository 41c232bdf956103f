"""Keeping calibrations: the key decides what holds, drift ends it, requests always come first."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest
from calibrations import decoded, prefilled, record
from fakes import FakeClock, FakeLoadedEngine, FakeMemory, settle, stored_model

from swiftlm_engine.brain.calibration import BadRecord, Record
from swiftlm_engine.brain.plan import MachineLimits
from swiftlm_proto import messages as m
from swiftlmd.calibration import CalibrationAdmin, CalibrationStore, Calibrator, Drift, Kept, Manner
from swiftlmd.calibration.drift import REQUESTS
from swiftlmd.calibration.store import circumstances_of
from swiftlmd.config.settings import Settings
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.residency.crashes import CrashRecord
from swiftlmd.residency.resident import Resident

MACHINE = MachineLimits(16 * 10**9, device_name="test", num_cores=2)
AS_LOADED = Manner("resident", "float32")


def keep(store: CalibrationStore, fingerprint: str = "f" * 32) -> Kept:
    return store.keep("a", fingerprint, "4-bit", MACHINE, AS_LOADED, record(), 1e9)


def test_a_record_is_found_again_by_another_daemon(tmp_path: Path) -> None:
    kept = keep(CalibrationStore(tmp_path))
    assert CalibrationStore(tmp_path).find("f" * 32, MACHINE) == kept


@pytest.mark.parametrize("change", ["mlx", "swiftlm", "system"])
def test_another_version_makes_a_record_void(change: str, tmp_path: Path) -> None:
    keep(CalibrationStore(tmp_path))
    later = CalibrationStore(
        tmp_path, lambda limits: replace(circumstances_of(limits), **{change: "newer"})
    )
    assert later.find("f" * 32, MACHINE) is None
    keep(later)
    assert len(later.all()) == 1, "the old record stayed"


def test_another_machine_or_model_has_no_record(tmp_path: Path) -> None:
    store = CalibrationStore(tmp_path)
    keep(store)
    assert store.find("f" * 32, replace(MACHINE, ram_bytes=8 * 10**9)) is None
    assert store.find("e" * 32, MACHINE) is None


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"record": 3}'])
def test_a_broken_record_counts_as_none_and_is_replaced(text: str, tmp_path: Path) -> None:
    store = CalibrationStore(tmp_path)
    keep(store)
    next(tmp_path.glob("*.json")).write_text(text)
    assert store.find("f" * 32, MACHINE) is None
    assert keep(store) == store.find("f" * 32, MACHINE)
    assert not list(tmp_path.glob("*.part"))


def _full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_record_that_cannot_be_written_leaves_the_old_one_with_its_edits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CalibrationStore(tmp_path)
    edited = store.edit(keep(store), {"prefill_chunk": 128})
    later = CalibrationStore(tmp_path, lambda limits: replace(circumstances_of(limits), mlx="new"))
    monkeypatch.setattr(os, "replace", _full_disk)
    for writer in (store, later):
        with pytest.raises(OSError, match="No space"):
            keep(writer)
    assert store.all() == [edited]
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


async def test_an_edit_that_cannot_be_written_is_answered_with_an_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(world.store)
    action = m.CalibrationsRequestAction.EDIT
    edit = m.CalibrationsRequest(action=action, choices={"parallel": 2})
    monkeypatch.setattr(os, "replace", _full_disk)
    with pytest.raises(ServiceError, match=r"'a' could not be changed.*No space"):
        await CalibrationAdmin(world.calibrator).answer("a", edit)


@pytest.mark.parametrize("median", [0, -1.0, 5.0, float("nan"), "1"])
@pytest.mark.parametrize("row", ["chunk_s", "memory_bytes_s"])
def test_a_spread_whose_median_is_outside_of_its_bounds_is_no_record(median, row) -> None:
    stored = json.loads(json.dumps(record().to_json()))
    spread = stored["prefill"][0][row] if row == "chunk_s" else stored[row]
    spread |= {"low": 1.0, "median": median, "high": 2.0}
    with pytest.raises(BadRecord):
        Record.from_json(stored)


def test_an_edit_holds_and_is_marked(tmp_path: Path) -> None:
    store = CalibrationStore(tmp_path)
    store.edit(keep(store), {"prefill_chunk": 128})
    found = store.find("f" * 32, MACHINE)
    assert found is not None
    assert (found.record.choices.prefill_chunk, found.edited) == (128, ("prefill_chunk",))
    with pytest.raises(ValueError, match="no choice"):
        store.edit(found, {"chunk": 1})
    with pytest.raises(ValueError, match="give 1 to"):
        store.edit(found, {"parallel": 0})


def finished(tokens_s: float) -> m.Finished:
    return m.Finished(
        reason=m.FinishedReason.STOP,
        usage=m.Usage(prompt_tokens=20, completion_tokens=24),
        timings=m.Timings(decode_tokens_per_s=tokens_s),
    )


def test_twenty_requests_off_the_record_are_a_drift_and_nineteen_are_not() -> None:
    drift = Drift()
    seen = [drift.observe(record(), finished(7.0)) for _ in range(REQUESTS)]
    assert seen[:-1] == [None] * (REQUESTS - 1)
    assert seen[-1] == pytest.approx(0.7, abs=0.01)


def test_noise_within_a_fifth_and_single_slow_requests_are_no_drift() -> None:
    drift = Drift()
    speeds = [8.6, 11.5, 2.0] * REQUESTS
    assert not any(drift.observe(record(), finished(speed)) for speed in speeds)


class World:
    """One idle model, a fake clock, and a measurement that the test lets go on."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.engine = FakeLoadedEngine("a", 7, FakeMemory(16 * 10**9), 10**9)
        self.engine.loaded.fingerprint = "f" * 32
        self.engine.client.calibrate = self.calibrate  # type: ignore[attr-defined]
        self.resident = Resident(stored_model("a"), Settings(), CrashRecord(self.clock), 600.0)
        self.resident.plan = json.dumps({"strategy": "resident", "dtype": "float32"})
        self.resident.became_ready(self.engine, self.clock.now())  # type: ignore[arg-type]
        self.residents = [self.resident]
        self.runs = 0
        self.breaks: ServiceError | None = None
        self.record = record()
        self.stopped = 0
        self.go_on = asyncio.Event()
        self.quiet = True
        self.settings = Settings()
        self.store = CalibrationStore(folder)
        self.calibrator = Calibrator(
            residency=self,  # type: ignore[arg-type]
            store=self.store,
            limits=lambda **_: MACHINE,
            clock=self.clock,
            settings=lambda: self.settings,
            quiet=lambda: self.quiet,
        )

    async def calibrate(self, run: m.CalibrationRun) -> AsyncGenerator[m.CalibrationEvent, None]:
        self.runs += 1
        if self.breaks is not None:
            raise self.breaks
        done = False
        try:
            yield m.CalibrationEvent(fraction=0.5, detail="half")
            await self.go_on.wait()
            yield m.CalibrationEvent(fraction=0.9)
            done = True
            yield m.CalibrationEvent(record=json.dumps(self.record.to_json()))
        finally:
            self.stopped += not done

    async def idle(self, seconds: float) -> None:
        for _ in range(int(seconds // 5)):
            await self.clock.advance(5)
            await asyncio.sleep(0.02)  # the store is read in a thread
            await settle()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World, None]:
    found = World(tmp_path)
    chore = asyncio.create_task(found.calibrator.run())
    await settle()
    yield found
    chore.cancel()


async def test_a_model_is_measured_once_after_its_first_idle_minute(world: World) -> None:
    world.go_on.set()
    await world.idle(50)
    assert world.runs == 0
    await world.idle(60)
    assert world.runs == 1
    assert world.store.find("f" * 32, MACHINE) is not None
    await world.idle(120)
    assert world.runs == 1


async def test_a_request_ends_a_measurement_and_the_next_idle_minute_tries_again(
    world: World,
) -> None:
    await world.idle(70)
    assert world.runs == 1
    world.quiet = False
    world.go_on.set()
    await world.idle(10)
    assert world.stopped == 1
    assert world.store.find("f" * 32, MACHINE) is None
    world.quiet = True
    await world.idle(10)
    assert world.runs == 2
    assert world.store.find("f" * 32, MACHINE) is not None


async def test_a_record_of_a_busy_machine_is_not_kept(world: World) -> None:
    world.record = record(decode=(decoded(1, 32, 0.1, noise=0.99), decoded(4, 32, 0.1, noise=0.99)))
    world.record = replace(world.record, prefill=(prefilled(64, 0, 100.0, noise=0.99),))
    world.go_on.set()
    with pytest.raises(ServiceError, match="too busy"):
        async for _ in world.calibrator._measured(world.resident, world.engine, full=False):  # type: ignore[arg-type]
            pass
    assert world.store.find("f" * 32, MACHINE) is None


async def test_nothing_is_measured_where_it_is_switched_off(world: World) -> None:
    world.settings = replace(world.settings, calibration_auto=False)
    await world.idle(200)
    assert world.runs == 0


async def test_drift_removes_the_record_and_the_model_is_measured_again(world: World) -> None:
    world.go_on.set()
    await world.idle(80)
    for _ in range(REQUESTS):
        world.calibrator.observe("a", finished(5.0), alone=False)
    assert world.store.find("f" * 32, MACHINE) is not None
    for _ in range(REQUESTS):
        world.calibrator.observe("a", finished(5.0), alone=True)
    assert world.store.find("f" * 32, MACHINE) is None
    await world.idle(20)
    assert world.runs == 2


async def test_engines_that_die_of_the_measurement_are_not_measured_without_end(
    world: World,
) -> None:
    world.breaks = ServiceError(Kind.INTERNAL, "the engine is gone: Connection lost")
    for pid in range(7, 17):
        world.engine.pid = pid
        world.resident.became_ready(world.engine, world.clock.now())
        await world.idle(80)
    assert world.runs == 3


async def test_a_model_whose_record_drifts_again_and_again_is_left_alone(world: World) -> None:
    world.go_on.set()
    for _ in range(6):
        await world.idle(80)
        for _ in range(REQUESTS):
            world.calibrator.observe("a", finished(5.0), alone=True)
    assert world.runs == 3


async def test_the_desk_shows_changes_and_clears(world: World) -> None:
    desk = CalibrationAdmin(world.calibrator)
    actions = m.CalibrationsRequestAction
    with pytest.raises(ServiceError) as nothing:
        await desk.answer("a", m.CalibrationsRequest(action=actions.EDIT, choices={"parallel": 2}))
    assert nothing.value.kind is Kind.INVALID
    keep(world.store)
    edit = m.CalibrationsRequest(action=actions.EDIT, choices={"parallel": 2})
    shown = json.loads((await desk.answer("a", edit)).records)
    assert shown[0]["chosen"]["parallel"] == 2
    assert (await desk.answer("b", m.CalibrationsRequest())).records == "[]"
    assert (await desk.answer("a", m.CalibrationsRequest(action=actions.CLEAR))).cleared == 1
    assert (await desk.answer("", m.CalibrationsRequest())).records == "[]"
