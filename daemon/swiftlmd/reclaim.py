"""What the governor's acts mean here: engines give buffers and KV back, idle models leave."""

from __future__ import annotations

import json
import logging

from swiftlm_proto import messages as m
from swiftlmd.engines.engine import Engine
from swiftlmd.faults import ServiceError
from swiftlmd.memory import Action
from swiftlmd.residency import Residency
from swiftlmd.resident import State

log = logging.getLogger(__name__)


class EngineReclaimer:
    """Implements `memory.Reclaimer`. A prefix cache that was halved grows back with `restore`."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self._shrunk: dict[int, int] = {}  # pid -> the prefix cache's full size

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
                    await self._ask(engine, action)
                except ServiceError as error:
                    log.debug("engine gave nothing back model=%s: %s", resident.name, error)

    async def restore(self) -> None:
        """Memory is calm: prefix caches may have their planned size again."""
        engines = {r.engine.pid: r.engine for r in self._residency.residents if r.engine}
        for pid, size in list(self._shrunk.items()):
            del self._shrunk[pid]
            if pid in engines:
                try:
                    await engines[pid].client.cache(m.CacheRequest(resize_bytes=size))
                except ServiceError as error:
                    log.debug("prefix cache stays small pid=%d: %s", pid, error)

    async def _ask(self, engine: Engine, action: Action) -> None:
        if action is Action.CLEAR_POOL:
            await engine.client.cache(m.CacheRequest(clear_pool=True))
        elif action is Action.SHRINK_PREFIX:
            stats = json.loads((await engine.client.cache(m.CacheRequest())).stats or "{}")
            limit = int(stats.get("budget_bytes") or 0)
            if limit:
                self._shrunk.setdefault(engine.pid, limit)
                await engine.client.cache(m.CacheRequest(resize_bytes=limit // 2))
