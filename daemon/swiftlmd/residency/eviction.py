"""Room for one more model: price it, evict what is least missed, see the memory come back.

The lock is held while a victim drains, so that two loads never count on the same bytes; giving
back a lease or ending an engine never needs it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from swiftlm_proto import messages as m
from swiftlmd.clock import Clock
from swiftlmd.engines.placement import Placement, Planner
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.residency.resident import Resident, State

log = logging.getLogger(__name__)

_SETTLE_S = 3.0  # memory of a process that has ended comes back within this
_SETTLE_STEP_S = 0.2

StopResident = Callable[[Resident, m.Fault], Awaitable[int]]


class Evictor:
    """Decides who leaves. `residents` is Residency's own table, only read here."""

    def __init__(
        self,
        clock: Clock,
        planner: Planner,
        residents: Mapping[str, Resident],
        stop: StopResident,
    ) -> None:
        self._clock = clock
        self._planner = planner
        self._residents = residents
        self._stop = stop
        self._deciding = asyncio.Lock()  # guards priced_bytes and the choice of victims

    async def make(self, newcomer: Resident, *, force: bool, evict: bool = True) -> Placement:
        """The placement to load `newcomer` by; its bytes are booked. Raises ServiceError."""
        async with self._deciding:
            placement = await self._place(newcomer)
            while not self._suits(newcomer, placement):
                leaving = await self._leaving_for(newcomer) if evict else []
                if not leaving:
                    if not force:
                        raise ServiceError(Kind.NOT_ENOUGH_MEMORY, placement.refusal)
                    log.warning("forced load model=%s: %s", newcomer.name, placement.refusal)
                    placement = await self._place(newcomer, force=True)
                    break
                for victim in leaving:
                    await self._evict(victim, newcomer)
                placement = await self._settled(newcomer)
            placement.request.force = force
            newcomer.priced_bytes = placement.needed_bytes
            newcomer.price_request = placement.price_request
            newcomer.plan = placement.plan
            newcomer.sampling = placement.sampling
            return placement

    def _suits(
        self, newcomer: Resident, placement: Placement, leaving: Sequence[Resident] = ()
    ) -> bool:
        limit = newcomer.settings.models_max_loaded
        staying = [r for r in self._others(newcomer) if r.priced_bytes and r not in leaving]
        return placement.fits and not (limit and len(staying) >= limit)

    async def _place(
        self, newcomer: Resident, leaving: Sequence[Resident] = (), *, force: bool = False
    ) -> Placement:
        held = sum(r.priced_bytes for r in self._others(newcomer) if r not in leaving)
        return await self._planner.place(
            newcomer.stored,
            newcomer.settings,
            held_bytes=held,
            returning_bytes=sum(max(r.footprint_bytes, r.priced_bytes) for r in leaving),
            force=force,
        )

    async def _leaving_for(self, newcomer: Resident) -> list[Resident]:
        """The fewest that must leave; none if `newcomer` does not fit even when all have left."""
        victims = self._victims(newcomer)
        for count in range(1, len(victims) + 1):
            leaving = victims[:count]
            if self._suits(newcomer, await self._place(newcomer, leaving), leaving):
                return leaving
        return []

    def _victims(self, newcomer: Resident) -> list[Resident]:
        """Who may leave: idle ones first, among them the one that was used longest ago; last of
        all what is still on its way in."""
        here = [
            resident
            for resident in self._others(newcomer)
            if resident.state in (State.READY, State.LOADING)
            and resident.priced_bytes
            and not resident.pinned
        ]
        return sorted(here, key=lambda r: (r.state is State.LOADING, r.leases > 0, r.used_at))

    def _others(self, newcomer: Resident) -> list[Resident]:
        return [resident for resident in self._residents.values() if resident is not newcomer]

    async def _evict(self, victim: Resident, newcomer: Resident) -> None:
        settings = newcomer.settings
        if victim.task is not None:  # its first requests come before ours
            await asyncio.wait({victim.task})
        held_s = victim.ready_at + settings.models_swap_hold - self._clock.now()
        if held_s > 0:  # alternating requests must not swap models on every turn
            await self._clock.sleep(held_s)
        victim.leaving = True
        victim.notify()
        try:
            if not await self._clock.wait(victim.idle, settings.models_swap_wait):
                message = f"model '{victim.name}' is busy and '{newcomer.name}' needs its memory"
                raise ServiceError(Kind.BUSY, message, retry_after_s=10)
            if victim.state is not State.READY:
                return  # it was unloaded, or died, while it drained
            reason = m.Fault(
                kind=Kind.SHUTTING_DOWN, message=f"model '{victim.name}' made room for another"
            )
            freed = await self._stop(victim, reason)
        finally:
            victim.leaving = False
            victim.notify()
        log.info("evicted model=%s for=%s freed=%d", victim.name, newcomer.name, freed)

    async def _settled(self, newcomer: Resident) -> Placement:
        """The verdict once the kernel shows the memory that an eviction gave back."""
        deadline = self._clock.now() + _SETTLE_S
        placement = await self._place(newcomer)
        while not placement.fits and self._clock.now() < deadline:
            await self._clock.sleep(_SETTLE_STEP_S)
            placement = await self._place(newcomer)
        return placement
