"""`swiftlmctl mem`: what every model is priced at, beside what the kernel and MLX measure.

Also keeps the ratio of the two, once per load, when the engine has come to rest.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any  # JSON values

from swiftlm_engine.brain.ledger import EntryKind
from swiftlm_engine.brain.plan import Accelerator
from swiftlm_proto import messages as m
from swiftlmd.clock import Clock
from swiftlmd.memory import RatioStore
from swiftlmd.memory.machine import Machine, own_bytes
from swiftlmd.residency.residency import Residency
from swiftlmd.residency.resident import Resident

log = logging.getLogger(__name__)

_EVERY_S = 2.0
_OFF, _OFF_BYTES = 0.15, 256 * 10**6  # both exceeded: a bug in the formulas
_AT_REST = ("weights", "experts", "image tower", "process")  # what a plan says an idle engine holds


def memory_report(
    residency: Residency, machine: Machine, ratios: RatioStore, level: str
) -> dict[str, Any]:
    """One JSON document; sizes in bytes under names that end so."""
    models = [_model(resident, ratios) for resident in residency.residents if resident.priced_bytes]
    status = machine.status([])
    return {
        "memory_bytes": status.memory_bytes,
        "available_bytes": status.available_bytes,
        "budget_bytes": status.budget_bytes,
        "reserve_bytes": machine.reserve_bytes,
        "priced_bytes": sum(model["priced_bytes"] for model in models),
        "measured_bytes": status.measured_bytes,
        "daemon_bytes": own_bytes(),
        "swap_used_bytes": status.swap_used_bytes,
        "pressure": status.pressure,
        "level": level,
        "models": models,
    }


def _model(resident: Resident, ratios: RatioStore) -> dict[str, Any]:
    stats = resident.engine.stats if resident.engine else None
    report: dict[str, Any] = {
        "model": resident.name,
        "state": (resident.state.value.name or "").lower(),
        "priced_bytes": resident.priced_bytes,
        "terms": _held(resident.plan, stats.measured if stats else {}),
    }
    if stats is not None:
        ratio = ratios.get(ratio_key(resident)) if resident.engine else None
        report["ratio_at_rest"] = "" if ratio is None else ratio.last
        report["measured"] = {
            "footprint_bytes": stats.footprint_bytes,
            "mlx_active_bytes": stats.active_bytes,
            "mlx_pool_bytes": stats.pool_bytes,
            "mlx_peak_bytes": stats.peak_bytes,
        }
    return report


def _held(plan: str, measured: Mapping[str, int]) -> list[dict[str, Any]]:
    """Every kind of the ledger: what it is priced at, beside what the engine says it holds."""
    priced: dict[str, int] = {}
    for term in _terms(plan):
        priced[term["kind"]] = priced.get(term["kind"], 0) + term["bytes"]
    return [
        {
            "kind": kind.value,
            "priced_bytes": priced.get(kind, 0),
            "measured_bytes": measured.get(kind),
        }
        for kind in EntryKind
        if kind in priced or kind in measured
    ]


def ratio_key(resident: Resident) -> str:
    """A model as it was loaded; it needs an engine."""
    assert resident.engine is not None, "a ratio is of a loaded model"
    loaded = resident.engine.loaded
    return f"{loaded.fingerprint or resident.name}:{loaded.dtype}"


def _terms(plan: str) -> list[dict[str, Any]]:
    terms: list[dict[str, Any]] = json.loads(plan).get("terms", []) if plan else []
    return terms


class PriceCheck:
    """Compares each load with its price, when the engine has come to rest."""

    def __init__(self, residency: Residency, ratios: RatioStore, clock: Clock) -> None:
        self._residency = residency
        self._ratios = ratios
        self._clock = clock
        self._done: set[int] = set()  # pids

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._clock.sleep(_EVERY_S)
            for resident in self._residency.residents:
                await self._compare(resident)

    async def _compare(self, resident: Resident) -> None:
        engine = resident.engine
        if engine is None or engine.pid in self._done or engine.client.busy.is_set():
            return
        stats = engine.stats
        if not stats.footprint_bytes:
            return
        self._done.add(engine.pid)
        priced = sum(t["bytes"] for t in _terms(resident.plan) if t["kind"] in _AT_REST)
        measured = _at_rest(engine.loaded.device, stats)
        if not priced:
            return
        key = ratio_key(resident)
        now = self._clock.date()
        try:
            ratio = await asyncio.to_thread(self._ratios.record, key, priced, measured, now)
        except OSError as error:
            log.warning("ratio of measured to priced memory not kept: %s", error)
            return
        off = abs(ratio.last - 1) > _OFF and abs(measured - priced) > _OFF_BYTES
        report = log.warning if off else log.info
        report(
            "memory at rest model=%s priced=%d measured=%d ratio=%.3f",
            resident.name,
            priced,
            measured,
            ratio.last,
        )


def _at_rest(device: str, stats: m.EngineStats) -> int:
    """What the engine holds of weights and as a process."""
    moving = stats.kv_bytes + stats.prefix_cache_bytes
    if device == Accelerator.CUDA:  # the kernel counts none of the card's memory
        return max(0, stats.footprint_bytes + stats.active_bytes - moving)
    return max(0, stats.footprint_bytes - stats.pool_bytes - moving)
