"""Room for one more model: price it, book it, see others leave and their memory come back.

A booking is made under a lock, so two loads never count on the same bytes; nothing is waited for
under it. A load waits only for models that are on their way out, that it claimed itself, or
whose load asked for room before it: no two loads wait for each other.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from swiftlm_proto import messages as m
from swiftlmd.clock import Clock
from swiftlmd.engines.placement import OnHosts, Placement, Planner, without_expansion
from swiftlmd.faults import Kind, MemoryFull, ServiceError
from swiftlmd.residency.resident import Resident, State

log = logging.getLogger(__name__)

_SETTLE_S = 3.0  # memory of a process that has ended comes back within this
_SETTLE_ELSEWHERE_S = 10.0  # a rank elsewhere first has to see that its group is gone
_SETTLE_STEP_S = 0.2
_RETRY_AFTER_S = 10  # other models are in the way: one may have left by then
_EVERYTHING = 2**60  # bytes: as if no other program held memory
_NOWHERE: Mapping[str, int] = {}

StopResident = Callable[[Resident, m.Fault], asyncio.Task[int]]


@dataclass(frozen=True, slots=True)
class _Returned:
    """What an engine that has ended held, which a reading may not show until then."""

    until: float
    num_bytes: int
    elsewhere_until: float = 0.0
    elsewhere: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Count:
    """Of one host's memory, as a plan takes it."""

    held: int
    returning: int


@dataclass(frozen=True, slots=True)
class _Packing:
    """Models whose float32 weights are to be quantized again, with the bytes that gives back."""

    freed: tuple[tuple[Resident, int], ...]


class Evictor:
    """Decides who leaves. `residents` is Residency's own table, only read here."""

    def __init__(
        self,
        clock: Clock,
        planner: Planner,
        residents: Mapping[str, Resident],
        stop: StopResident,
        memory_is_short: Callable[[], bool],  # at the hard limit: no new work starts
    ) -> None:
        self._clock = clock
        self._planner = planner
        self._residents = residents
        self._stop = stop
        self._memory_is_short = memory_is_short
        self._turns = itertools.count(1)
        self._returned: list[_Returned] = []
        self._deciding = asyncio.Lock()  # guards priced_bytes and claimed_by

    async def make(self, newcomer: Resident) -> Placement:
        """The placement to load `newcomer` by; its bytes are booked. Raises ServiceError."""
        newcomer.turn = next(self._turns)
        while True:
            async with self._deciding:
                found = await self._decide(newcomer)
            if isinstance(found, Placement):
                return found
            if isinstance(found, _Packing):
                await self._pack(found, newcomer)
            else:
                await self._see_off(found, newcomer)

    async def check(self, newcomer: Resident, replaced: Resident) -> None:
        """Raises the refusal that `newcomer` would meet in the place of `replaced`."""
        newcomer.turn = next(self._turns)
        async with self._deciding:
            placement = await self._place(newcomer, [replaced])
            if self._suits(newcomer, placement, [replaced]):
                return
            if await self._packing_for(newcomer, placement, [replaced]):
                return
            if not await self._leaving_for(newcomer, [replaced]):
                raise await self._refusal(newcomer, placement)

    def returned(self, num_bytes: int, elsewhere: Mapping[str, int] = _NOWHERE) -> None:
        """An engine is gone; the kernel may show its memory a little later, other hosts theirs."""
        now = self._clock.now()
        until, elsewhere_until = now + _SETTLE_S, now + _SETTLE_ELSEWHERE_S
        self._returned.append(_Returned(until, num_bytes, elsewhere_until, elsewhere))

    async def _decide(self, newcomer: Resident) -> Placement | _Packing | list[Resident]:
        """The placement, or what must happen first: float32 weights are given up, or models leave
        (none of them, when memory is just coming back)."""
        if self._memory_is_short() and not newcomer.force:
            message = f"memory is at its hard limit, so '{newcomer.name}' is not loaded now"
            raise MemoryFull(f"{message}; try again later", retry_after_s=_RETRY_AFTER_S)
        placement = await self._place(newcomer)
        if self._suits(newcomer, placement):
            return _booked(newcomer, placement)
        if self._is_returning():
            settled = await self._place(newcomer, settled=True)
            if self._suits(newcomer, settled):
                return []
        if packing := await self._packing_for(newcomer, placement):
            return _given_up(packing)
        if leaving := await self._leaving_for(newcomer):
            _booked(newcomer, placement)
            for victim in leaving:
                if not self._is_leaving(victim, newcomer):
                    victim.claimed_by = newcomer
            return leaving
        if not newcomer.force:
            raise await self._refusal(newcomer, placement)
        log.warning("forced load model=%s: %s", newcomer.name, placement.refusal)
        return _booked(newcomer, await self._place(newcomer, force=True))

    def _suits(
        self, newcomer: Resident, placement: Placement, gone: Sequence[Resident] = ()
    ) -> bool:
        limit = newcomer.settings.models_max_loaded
        most = max(len([r for r in some if r.priced_bytes]) for some in self._kept(newcomer, gone))
        return placement.fits and not (limit and most >= limit)

    async def _place(
        self,
        newcomer: Resident,
        gone: Sequence[Resident] = (),
        *,
        packing: Sequence[Resident] = (),
        force: bool = False,
        settled: bool = False,
    ) -> Placement:
        """The verdict when `gone` have left: beside what is here then, and what is booked.
        `settled`: as if all that engines held before they ended had come back."""
        packed = sum(resident.expanded_bytes for resident in packing)
        back = self._returning() if settled else 0
        own = self._count(newcomer, gone, back + packed, _priced, _memory)
        others = self._others(newcomer)
        held, returning = {}, {}
        for host in {host for r in others for host in r.elsewhere} | self._hosts_returning():
            size = partial(_priced_on, host)
            back = self._returning(host) if settled else 0
            there = self._count(newcomer, gone, back, size, size)
            held[host], returning[host] = there.held, there.returning
        return await self._planner.place(
            newcomer.stored,
            newcomer.loaded_as,
            held_bytes=own.held - packed,
            returning_bytes=own.returning,
            elsewhere=OnHosts(held, returning),
            force=force,
        )

    def _count(
        self,
        newcomer: Resident,
        gone: Sequence[Resident],
        back: int,
        priced: Callable[[Resident], int],
        memory: Callable[[Resident], int],
    ) -> _Count:
        """Of one host. `back`: what comes back beside the memory of `gone`."""
        here, booked = self._kept(newcomer, gone)
        others = self._others(newcomer)
        leaving = [r for r in others if r in gone or self._is_leaving(r, newcomer)]
        now = sum(memory(r) for r in others if r in gone and r.holds_memory) + back
        later = sum(memory(r) for r in leaving if r.holds_memory) + back
        claims = sum(priced(r) for r in booked if not r.holds_memory)
        held = max(sum(map(priced, here)), sum(map(priced, booked)))
        return _Count(held, min(now, later - claims))

    def _kept(
        self, newcomer: Resident, gone: Sequence[Resident]
    ) -> tuple[list[Resident], list[Resident]]:
        """Who is beside it when it begins to load, and who once all that leave have left."""
        staying = [r for r in self._others(newcomer) if r not in gone]
        here = [r for r in staying if r.holds_memory]
        return here, [r for r in staying if not self._is_leaving(r, newcomer)]

    def _is_leaving(self, resident: Resident, newcomer: Resident) -> bool:
        """On its way out without `newcomer`; a claim of a later load counts for nothing."""
        if resident.state is State.UNLOADING:
            return resident.stuck is None
        claimant = resident.claimed_by
        return claimant is not None and claimant.turn < newcomer.turn

    def _is_returning(self) -> bool:
        now = self._clock.now()
        self._returned = [r for r in self._returned if max(r.until, r.elsewhere_until) > now]
        return self._returning() > 0 or bool(self._hosts_returning())

    def _returning(self, host: str = "") -> int:
        """What ended engines held that the kernel here, or another host, may not show yet."""
        now = self._clock.now()
        if not host:
            return sum(r.num_bytes for r in self._returned if r.until > now)
        return sum(r.elsewhere.get(host, 0) for r in self._returned if r.elsewhere_until > now)

    def _hosts_returning(self) -> set[str]:
        now = self._clock.now()
        return {host for r in self._returned if r.elsewhere_until > now for host in r.elsewhere}

    async def _packing_for(
        self, newcomer: Resident, placement: Placement, gone: Sequence[Resident] = ()
    ) -> list[Resident]:
        """Whose float32 weights are to be quantized again: the fewest that make room, or all where
        no model's leaving would do without. None where it does not help."""
        found = [r for r in self._staying(newcomer, gone) if r.expanded_bytes]
        if placement.fits or not found:
            return []
        found.sort(key=lambda r: (r.leases > 0, r.used_at))
        for count in range(1, len(found) + 1):
            placement = await self._place(newcomer, gone, packing=found[:count])
            if self._suits(newcomer, placement, gone):
                return found[:count]
        leaving = [*gone, *(r for r in self._candidates(newcomer) if r not in gone)]
        if await self._suits_without(newcomer, leaving):
            return []
        found = [r for r in found if r not in leaving]
        placement = await self._place(newcomer, leaving, packing=found)
        return found if self._suits(newcomer, placement, leaving) else []

    def _staying(self, newcomer: Resident, gone: Sequence[Resident]) -> list[Resident]:
        return [
            resident
            for resident in self._others(newcomer)
            if resident.state is State.READY
            and resident not in gone
            and not self._is_leaving(resident, newcomer)
        ]

    async def _pack(self, packing: _Packing, newcomer: Resident) -> None:
        """Until these models are loaded again."""
        for resident, freed in packing.freed:
            if resident.engine is None:
                continue
            try:
                await resident.engine.client.cache(m.CacheRequest(expanded=False))
            except ServiceError as error:
                log.warning("weights stay float32 model=%s: %s", resident.name, error)
                resident.priced_bytes += freed
                continue
            resident.plan = without_expansion(resident.plan)
            self.returned(freed)
            log.info("weights quantized again model=%s for=%s", resident.name, newcomer.name)

    async def _leaving_for(
        self, newcomer: Resident, gone: Sequence[Resident] = ()
    ) -> list[Resident]:
        """The fewest that must leave; none if `newcomer` does not fit even when all have left."""
        candidates = [r for r in self._candidates(newcomer) if r not in gone]
        for count in range(1, len(candidates) + 1):
            if await self._suits_without(newcomer, [*gone, *candidates[:count]]):
                leaving = candidates[:count]
                for spared in reversed(leaving[:-1]):  # the most missed first
                    fewer = [r for r in leaving if r is not spared]
                    if await self._suits_without(newcomer, [*gone, *fewer]):
                        leaving = fewer
                return leaving
        return []

    async def _suits_without(self, newcomer: Resident, gone: Sequence[Resident]) -> bool:
        return self._suits(newcomer, await self._place(newcomer, gone), gone)

    def _candidates(self, newcomer: Resident) -> list[Resident]:
        """Who may leave: first those on their way out, then idle ones, among them the one that was
        used longest ago; last of all what is still on its way in."""
        here = [r for r in self._others(newcomer) if r.priced_bytes and self._may_go(r, newcomer)]
        return sorted(
            here,
            key=lambda r: (
                not self._is_leaving(r, newcomer),
                r.state is State.LOADING,
                r.leases > 0,
                r.used_at,
            ),
        )

    def _may_go(self, resident: Resident, newcomer: Resident) -> bool:
        if self._is_leaving(resident, newcomer):
            return True
        if resident.pinned or not newcomer.may_evict:
            return False
        if resident.state is State.LOADING:
            return resident.turn < newcomer.turn
        return resident.state is State.READY

    def _others(self, newcomer: Resident) -> list[Resident]:
        return [resident for resident in self._residents.values() if resident is not newcomer]

    async def _refusal(self, newcomer: Resident, placement: Placement) -> ServiceError:
        """Final where the model would not fit alone, else an invitation to ask again."""
        limit = newcomer.settings.models_max_loaded
        hosts = dict.fromkeys(newcomer.loaded_as.cluster_hosts, _EVERYTHING)
        alone = await self._planner.place(
            newcomer.stored,
            newcomer.loaded_as,
            held_bytes=0,
            returning_bytes=_EVERYTHING,
            elsewhere=OnHosts(returning=hosts),
        )
        if not alone.fits:
            return ServiceError(Kind.NOT_ENOUGH_MEMORY, alone.refusal)
        if placement.fits and limit:
            message = _too_many(limit, [r for r in self._others(newcomer) if r.priced_bytes])
        else:
            message = f"{placement.refusal}; it fits once others have given back their memory"
        return MemoryFull(message, retry_after_s=_RETRY_AFTER_S)

    async def _see_off(self, leaving: Sequence[Resident], newcomer: Resident) -> None:
        """Waits for all of them to go, or for a reason to decide again. Raises ServiceError."""
        ours = [victim for victim in leaving if victim.claimed_by is newcomer]
        if not leaving:
            await self._clock.sleep(_SETTLE_STEP_S)
        try:
            for other in leaving:
                if other not in ours:
                    await self._departure(other, newcomer)
            await self._evict(ours, newcomer)
        finally:
            for victim in ours:
                if victim.claimed_by is newcomer:
                    victim.released()

    async def _departure(self, other: Resident, newcomer: Resident) -> None:
        """Until a model that leaves without us has left, or stays."""
        while self._is_leaving(other, newcomer):
            if other.stopping is not None:
                await asyncio.wait({other.stopping})
                return
            await other.change()

    async def _evict(self, victims: Sequence[Resident], newcomer: Resident) -> None:
        """All of them or none; returns with nothing done when one of them shall stay."""
        for victim in victims:
            if victim.task is not None:  # its first requests come before ours
                await asyncio.wait({victim.task})
        if not await self._held_long_enough(victims, newcomer):
            return
        for victim in victims:
            victim.leaving = True
            victim.notify()
        busy = await self._still_busy(victims, newcomer.settings.models_swap_wait)
        if not _are_claimed(victims, newcomer):
            return
        if busy is not None:
            message = f"model '{busy.name}' is busy and '{newcomer.name}' needs its memory"
            raise ServiceError(Kind.BUSY, message, retry_after_s=_RETRY_AFTER_S)
        log.info("evicting models=%s for=%s", ",".join(v.name for v in victims), newcomer.name)
        stops = {self._stop(victim, _made_room(victim)) for victim in victims}
        if stops:
            await asyncio.wait(stops)

    async def _held_long_enough(self, victims: Sequence[Resident], newcomer: Resident) -> bool:
        """Alternating requests must not swap models on every turn."""
        since = max((victim.ready_at for victim in victims), default=-math.inf)
        hold_s = since + newcomer.settings.models_swap_hold - self._clock.now()
        if hold_s > 0:
            await self._clock.sleep(hold_s)
        return _are_claimed(victims, newcomer)

    async def _still_busy(self, victims: Sequence[Resident], patience_s: float) -> Resident | None:
        """One whose requests did not end in time, if there is one."""
        deadline = self._clock.now() + patience_s
        for victim in victims:
            if not await self._clock.wait(victim.idle, deadline - self._clock.now()):
                return victim
        return None


def _booked(newcomer: Resident, placement: Placement) -> Placement:
    placement.request.force = newcomer.force
    newcomer.priced_bytes, newcomer.elsewhere = placement.needed_bytes, placement.elsewhere
    newcomer.expanded_bytes = placement.expanded_bytes
    newcomer.price_request = placement.price_request
    newcomer.plan = placement.plan
    newcomer.sampling = placement.sampling
    return placement


def _given_up(packing: Sequence[Resident]) -> _Packing:
    """Booked at once: no other load counts on the same bytes."""
    freed = tuple((resident, resident.expanded_bytes) for resident in packing)
    for resident, num_bytes in freed:
        resident.priced_bytes -= num_bytes
        resident.expanded_bytes = 0
    return _Packing(freed)


def _are_claimed(victims: Sequence[Resident], newcomer: Resident) -> bool:
    """Whether all may still go: none was pinned, unloaded, or claimed by an earlier load."""
    return all(
        victim.claimed_by is newcomer and victim.state is State.READY and not victim.pinned
        for victim in victims
    )


def _made_room(victim: Resident) -> m.Fault:
    message = f"model '{victim.name}' made room for another"
    return m.Fault(kind=Kind.SHUTTING_DOWN, message=message, retry_after_s=1)


def _too_many(limit: int, loaded: Sequence[Resident]) -> str:
    pinned = [f"'{r.name}'" for r in loaded if r.pinned]
    if not pinned:
        names = ", ".join(f"'{r.name}'" for r in loaded)
        return f"models.max_loaded = {limit} and {names} cannot leave now; try again later"
    verb = "is" if len(pinned) == 1 else "are"
    return (
        f"models.max_loaded = {limit} and {', '.join(pinned)} {verb} pinned; "
        f"unpin one with `swiftlmctl unpin NAME` or raise the limit"
    )


def _priced(resident: Resident) -> int:
    return resident.priced_bytes


def _memory(resident: Resident) -> int:
    return max(resident.footprint_bytes, resident.priced_bytes)


def _priced_on(host: str, resident: Resident) -> int:
    return resident.elsewhere.get(host, 0)
