"""What the governor's acts mean here: engines give buffers and KV back, idle models leave."""

from __future__ import annotations

import logging

from swiftlm_engine.brain.plan import knee
from swiftlm_proto import messages as m
from swiftlmd.engines.engine import Engine
from swiftlmd.faults import ServiceError
from swiftlmd.memory import Action
from swiftlmd.residency.residency import Residency
from swiftlmd.residency.resident import Resident, State

log = logging.getLogger(__name__)


_SLOTS_KEPT = 0.8  # of a streamed model's expert slots, each time


class EngineReclaimer:
    """Implements `memory.Reclaimer`. What was shrunk grows back with `restore`."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self._shrunk: dict[int, m.CacheRequest] = {}  # pid -> what gives it its full size again

    async def reclaim(self, action: Action) -> None:
        if action is Action.EVICT_IDLE:
            try:
                await self._residency.evict_idle()
            except ServiceError as error:
                log.error("an idle model did not leave: %s", error)
            return
        for resident in self._residency.residents:
            engine = resident.engine
            if resident.state is State.READY and engine is not None:
                try:
                    await self._ask(resident, engine, action)
                except ServiceError as error:
                    log.debug("engine gave nothing back model=%s: %s", resident.name, error)

    async def restore(self) -> None:
        """Memory is calm: prefix caches, weights and slots may have their planned size again.

        An engine that cannot be asked now is asked at the next call.
        """
        residents = {r.engine.pid: r for r in self._residency.residents if r.engine}
        for pid, request in list(self._shrunk.items()):
            del self._shrunk[pid]
            resident = residents.get(pid)
            if resident is not None and resident.engine is not None:
                if not resident.expanded_bytes:  # they have made room for another model
                    request.expanded = None
                try:
                    await resident.engine.client.cache(request)
                except ServiceError as error:
                    self._shrunk[pid] = request
                    log.debug("engine stays small pid=%d: %s", pid, error)

    async def _ask(self, resident: Resident, engine: Engine, action: Action) -> None:
        if action is Action.CLEAR_POOL:
            await engine.client.cache(m.CacheRequest(clear_pool=True))
        elif action is Action.SHRINK_PREFIX:
            await self._halve_prefix(engine)
        elif action is Action.PACK_WEIGHTS and resident.expanded_bytes:
            self._shrunk.setdefault(engine.pid, m.CacheRequest()).expanded = True
            await engine.client.cache(m.CacheRequest(expanded=False))
        elif action in (Action.SHRINK_SLOTS, Action.TRIM_SLOTS):
            await self._take_slots(engine, gently=action is Action.TRIM_SLOTS)

    async def _halve_prefix(self, engine: Engine) -> None:
        stats = (await engine.client.cache(m.CacheRequest())).stats
        if stats is None or not stats.budget_bytes:
            return
        limit = stats.budget_bytes
        full = self._shrunk.setdefault(engine.pid, m.CacheRequest())
        full.resize_bytes = full.resize_bytes or limit
        await engine.client.cache(m.CacheRequest(resize_bytes=limit // 2))

    async def _take_slots(self, engine: Engine, *, gently: bool) -> None:
        """Between two steps; the engine keeps at least what one token needs, and `gently` half of
        the slots up to which the hit curve is steep."""
        stream = engine.stats.stream or m.StreamCounters()
        slots, least = stream.slots, stream.experts_per_token
        if gently:
            least = max(least, knee(stream.num_experts or 2 * slots) // 2)
        fewer = max(int(slots * _SLOTS_KEPT), least)
        if not 0 < fewer < slots:
            return
        full = self._shrunk.setdefault(engine.pid, m.CacheRequest())
        full.expert_slots = full.expert_slots or slots
        await engine.client.cache(m.CacheRequest(expert_slots=fewer))
