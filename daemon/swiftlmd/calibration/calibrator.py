"""Measures models: when asked to, and by itself after the first idle minute of a model.

A request to any model ends a measurement, since two programs on one machine measure each other.
What was found is used by the next plan; nothing that is loaded changes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol

from swiftlm_engine.brain.calibration import Record
from swiftlm_engine.brain.plan import MachineLimits
from swiftlm_proto import messages as m
from swiftlmd.calibration.drift import Drift
from swiftlmd.calibration.store import CalibrationStore, Kept, Manner
from swiftlmd.clock import Clock
from swiftlmd.config.settings import Settings
from swiftlmd.engines.engine import Engine
from swiftlmd.faults import Kind, ServiceError, from_fault
from swiftlmd.residency.residency import Residency
from swiftlmd.residency.resident import Resident, State

log = logging.getLogger(__name__)

IDLE_S = 60.0
MAX_NOISE = 0.8  # of the median figure; such a record would choose and predict at random
_EVERY_S = 5.0
_MOST_TRIES = 3  # by itself; a machine that is never quiet for a minute is left alone


class Limits(Protocol):
    def __call__(self, *, committed_bytes: int, returning_bytes: int) -> MachineLimits: ...


class Calibrator:
    """`quiet` says whether no request is under way and memory is calm."""

    def __init__(
        self,
        *,
        residency: Residency,
        store: CalibrationStore,
        limits: Limits,
        clock: Clock,
        settings: Callable[[], Settings],
        quiet: Callable[[], bool],
    ) -> None:
        self._residency = residency
        self.store = store
        self._limits = limits
        self._clock = clock
        self._settings = settings
        self._quiet = quiet
        self._running = asyncio.Lock()  # one measurement at a time on a machine
        # By the name of the model: an engine that dies of it must not be measured without end.
        self._tries: dict[str, int] = {}
        self._known: dict[str, Kept] = {}  # by the name of the model
        self._drifts: dict[str, Drift] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._clock.sleep(_EVERY_S)
            for resident in self._residency.residents:
                if await self._due(resident):
                    await self._measure_unasked(resident)

    async def calibrate(
        self, name: str, *, full: bool
    ) -> AsyncGenerator[m.CalibrationEvent | Kept, None]:
        """Progress, then the record. Loads the model if need be; raises ServiceError."""
        async with self._residency.lease(name) as lease:
            resident = next(r for r in self._residency.residents if r.name == lease.model)
            async with aclosing(self._measured(resident, lease.engine, full=full)) as events:
                async for event in events:
                    yield event

    def observe(self, model: str, finished: m.Finished, *, alone: bool) -> None:
        """Every request's end. Enough of them off the record make it void."""
        kept = self._known.get(model)
        if kept is None or not alone:
            return
        ratio = self._drifts.setdefault(model, Drift()).observe(kept.record, finished)
        if ratio is not None:
            log.warning("calibration void model=%s: decodes at %.2f of it", model, ratio)
            self._void(kept)

    def forget(self, kept: Kept | None = None) -> int:
        """Removes one record, or all of them; models that are loaded are measured again."""
        self._tries.clear()
        return self._void(kept)

    def _void(self, kept: Kept | None) -> int:
        for name, known in list(self._known.items()):
            if kept is None or known.fingerprint == kept.fingerprint:
                del self._known[name]
                self._drifts.pop(name, None)
        return self.store.clear(kept.fingerprint if kept else "")

    async def find(self, resident: Resident) -> Kept | None:
        """The record that holds for a loaded model."""
        if resident.engine is None:
            return None
        limits = await self._machine()
        fingerprint = resident.engine.loaded.fingerprint
        return await asyncio.to_thread(self.store.find, fingerprint, limits)

    async def _due(self, resident: Resident) -> bool:
        engine = resident.engine
        if not self._settings().calibration_auto or engine is None or not resident.usable:
            return False
        idle_s = self._clock.now() - resident.used_at
        if resident.leases or idle_s < IDLE_S or not self._quiet():
            return False
        if not engine.loaded.fingerprint:  # nothing could be kept under it
            return False
        if resident.name in self._known or self._tries.get(resident.name, 0) >= _MOST_TRIES:
            return False
        kept = await self.find(resident)
        if kept is not None:
            self._known[resident.name] = kept
        return kept is None

    async def _measure_unasked(self, resident: Resident) -> None:
        engine = resident.engine
        if engine is None or resident.state is not State.READY:
            return
        self._tries[resident.name] = self._tries.get(resident.name, 0) + 1
        try:
            async with aclosing(self._measured(resident, engine, full=False)) as events:
                async for _ in events:
                    pass
        except ServiceError as error:
            log.info("calibration put off model=%s: %s", resident.name, error)

    async def _measured(
        self, resident: Resident, engine: Engine, *, full: bool
    ) -> AsyncGenerator[m.CalibrationEvent | Kept, None]:
        if self._running.locked():
            raise ServiceError(Kind.BUSY, "another model is being measured", retry_after_s=60)
        async with self._running:
            run = m.CalibrationRun(full=full)
            async with aclosing(engine.client.calibrate(run)) as events:
                async for event in events:
                    if not self._quiet():
                        raise ServiceError(Kind.BUSY, "a request came first", retry_after_s=60)
                    if event.fault is not None:
                        raise from_fault(event.fault)
                    if event.record:
                        yield await self._keep(resident, engine, event.record)
                        return
                    yield event
        raise ServiceError(Kind.INTERNAL, "the measurement ended without a record")

    async def _keep(self, resident: Resident, engine: Engine, text: str) -> Kept:
        record = Record.from_json(json.loads(text))
        if record.noise > MAX_NOISE:
            message = (
                f"nothing was kept of '{resident.name}': the machine is too busy to be measured, "
                f"figures spread by {record.noise:.0%}; try again when it is quiet"
            )
            raise ServiceError(Kind.BUSY, message, retry_after_s=60)
        plan = json.loads(resident.plan or "{}")
        manner = Manner(
            strategy=str(plan.get("strategy", "")),
            dtype=str(plan.get("dtype", engine.loaded.dtype)),
            gpu_layers=plan.get("gpu_layers"),
            expanded=str((plan.get("cpu_weights") or {}).get("held_as", "")),
        )
        try:
            kept = await asyncio.to_thread(
                self.store.keep,
                resident.name,
                engine.loaded.fingerprint,
                str(plan.get("quantization", "")),
                await self._machine(),
                manner,
                record,
                self._clock.date(),
            )
        except OSError as error:
            message = f"the calibration of '{resident.name}' could not be kept: {error}"
            raise ServiceError(Kind.INTERNAL, message) from error
        self._known[resident.name] = kept
        self._drifts.pop(resident.name, None)
        log.info("calibrated model=%s full=%s", resident.name, kept.record.full)
        return kept

    async def _machine(self) -> MachineLimits:
        return await asyncio.to_thread(self._limits, committed_bytes=0, returning_bytes=0)
