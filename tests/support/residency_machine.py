"""Plays a list of events to a residency and says which promises it broke.

Promises: a model has one engine at most, and residency knows it; what is loaded unforced stays
within the budget; a lease is of a living engine, and all come back; a pinned model makes no room;
nobody waits for ever; memory that is coming back is waited for; closing ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from fakes import FakeLoadedEngine, settle
from residency_world import GB, World, make_world

from swiftlm_proto import messages as m
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.residency.resident import State
from swiftlmd.residency.self_test import test_engines as wake_engines

NAMES = "abc"
Event = tuple[Any, ...]  # its name, then what it takes

_BUDGET = 13 * GB
_LONG_S = 30.0  # real time for one list: far more than it takes, also on a busy machine


class Machine:
    """One run; `problems` are the promises that were broken."""

    def __init__(self) -> None:
        self.world: World = make_world()
        self.problems: list[str] = []
        self._engines: list[FakeLoadedEngine] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._leases: list[asyncio.Event] = []  # each ends one
        self._forced = False
        self._late: list[tuple[float, int]] = []  # memory that the kernel still counts
        self._returns_late = False
        self._watch_launches()

    async def play(self, events: list[Event]) -> list[str]:
        try:
            async with asyncio.timeout(_LONG_S):
                await self._play(events)
            if self.world.memory.held:
                self._broken("engines outlive residency")
        except TimeoutError:
            self._broken("residency never closes")
        return self.problems

    async def _play(self, events: list[Event]) -> None:
        async with self.world.residency:
            for event in events:
                await getattr(self, event[0])(*event[1:])
                self._check(event)
            await self._let_go()
            self._check_ends()
            await self._check_that_all_can_be_loaded()

    # The events

    async def use(self, name: str) -> None:
        self._start(self.world.use(name))

    async def hold(self, name: str) -> None:
        released = asyncio.Event()
        self._leases.append(released)
        self._start(self._leased(name, released))

    async def release(self, number: int) -> None:
        if self._leases:
            self._leases.pop(number % len(self._leases)).set()

    async def load(self, name: str, pin: bool, context: int, force: bool) -> None:
        self._forced |= force
        usual = self.world.settings.for_model(name)
        settings = dataclasses.replace(usual, engine_context=context) if context else None
        self._start(self._loaded(name, settings, pin=pin, force=force))

    async def unload(self, name: str, force: bool) -> None:
        self._start(self.world.residency.unload(name, force=force))

    async def cancel(self, number: int) -> None:
        """A caller leaves."""
        if self._tasks:
            self._tasks[-1 - number % len(self._tasks)].cancel()

    async def crash(self, name: str) -> None:
        for engine in self._alive(name):
            engine.die(-9)

    async def gate(self, is_open: bool) -> None:
        gate = self.world.launcher.gate
        (gate.set if is_open else gate.clear)()

    async def slow_stop(self, name: str, slow: bool) -> None:
        for engine in self._alive(name):
            (engine.hold_stop.clear if slow else engine.hold_stop.set)()

    async def late_memory(self, late: bool) -> None:
        """What an engine held comes back a second after its end."""
        self._returns_late = late

    async def time(self, seconds: float) -> None:
        memory, clock = self.world.memory, self.world.clock
        for due, size in [late for late in self._late if late[0] <= clock.now() + seconds]:
            await clock.advance(max(0.0, due - clock.now()))
            memory.others -= size
            self._late.remove((due, size))
            seconds -= 1 if seconds > 1 else 0
        await clock.advance(seconds)

    async def evict(self) -> None:
        self._start(self.world.residency.evict_idle())

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def pin(self, name: str, pinned: bool) -> None:
        with contextlib.suppress(ServiceError):
            self.world.residency.pin(name, pinned)

    async def configure(self, max_loaded: int, keep_alive: float, pins: bool) -> None:
        before = self.world.settings
        self.world.settings = dataclasses.replace(
            before,
            models_max_loaded=max_loaded,
            models_keep_alive=keep_alive,
            models_pinned=("a",) if pins else (),
        )
        self.world.residency.take_over(before, self.world.settings)

    async def fail_next(self) -> None:
        self.world.launcher.faults.append(ServiceError(Kind.INVALID, "not like this"))

    async def wake(self) -> None:
        """The machine slept; each engine gives its token."""
        for engine in self._engines:
            end = m.Finished(reason=m.FinishedReason.STOP)
            engine.client.events.put_nowait(m.SequenceEvent(finished=end))
        self._start(wake_engines(self.world.residency, self.world.clock))

    # What they need

    def _start(self, coroutine: Any) -> None:
        self._tasks.append(asyncio.create_task(coroutine))

    async def _leased(self, name: str, released: asyncio.Event) -> None:
        async with self.world.residency.lease(name) as lease:
            if lease.engine.ended:
                self._broken(f"lease of an ended engine of {name}")
            await released.wait()

    async def _loaded(self, name: str, settings: Any, *, pin: bool, force: bool) -> None:
        async for _ in self.world.residency.load(name, settings, pin=pin, force=force):
            pass

    def _alive(self, name: str) -> list[FakeLoadedEngine]:
        return [e for e in self._engines if e.loaded.model == name and not e.ended]

    def _watch_launches(self) -> None:
        launch = self.world.launcher.launch

        async def watched(placement: Any, settings: Any, on_progress: Any) -> FakeLoadedEngine:
            if self._alive(placement.request.model):
                self._broken(f"second engine of {placement.request.model}")
            engine = await launch(placement, settings, on_progress)
            self._engines.append(engine)
            engine.stop = self._watched_stop(engine, engine.stop)
            engine.die = self._watched_death(engine, engine.die)
            return engine

        self.world.launcher.launch = watched

    def _watched_stop(self, engine: FakeLoadedEngine, stop: Any) -> Any:
        async def watched(deadline_s: float, reason: m.Fault) -> Any:
            pinned = {r.name for r in self.world.residency.residents if r.pinned}
            if engine.loaded.model in pinned and "made room" in reason.message:
                self._broken(f"pinned {engine.loaded.model} made room")
            return await stop(deadline_s, reason)

        return watched

    def _watched_death(self, engine: FakeLoadedEngine, die: Any) -> Callable[[int], None]:
        def watched(code: int) -> None:
            held = self.world.memory.held.get(engine.pid, 0)
            die(code)
            if held and self._returns_late:
                self.world.memory.others += held
                self._late.append((self.world.clock.now() + 1, held))

        return watched

    async def _let_go(self) -> None:
        """Nothing holds anything any more."""
        await self.gate(True)
        for released in self._leases:
            released.set()
        self._returns_late = False
        for _ in range(60):
            for name in NAMES:
                await self.slow_stop(name, False)
            await self.time(3)
            if all(task.done() for task in self._tasks) and self._is_quiet():
                return

    def _is_quiet(self) -> bool:
        states = {resident.state for resident in self.world.residency.residents}
        return not self._late and not states & {State.LOADING, State.UNLOADING}

    async def _check_that_all_can_be_loaded(self) -> None:
        await self.configure(0, 600.0, False)
        self.world.launcher.faults.clear()
        for name in NAMES:
            for other in NAMES:
                await self.pin(other, False)
            task = asyncio.create_task(self._loaded(name, None, pin=False, force=False))
            for _ in range(70):
                if not task.done():
                    await self.time(1)
            if not task.done():
                self._broken(f"{name} is never loaded")
                task.cancel()
            elif task.exception() is not None:
                self._broken(f"{name} cannot be loaded: {task.exception()}")

    # The promises

    def _broken(self, promise: str) -> None:
        self.problems.append(promise)

    def _check(self, event: Event) -> None:
        alive = [e for e in self._engines if not e.ended]
        if not self._forced and sum(self.world.memory.held[e.pid] for e in alive) > _BUDGET:
            self._broken(f"more than the budget is loaded after {event}")

    def _check_ends(self) -> None:
        residents = self.world.residency.residents
        for task in self._tasks:
            if not task.done():
                self._broken(f"{task.get_coro()} waits for ever")
                task.cancel()
            elif not task.cancelled() and not isinstance(task.exception(), ServiceError | None):
                self._broken(f"{task.get_coro()} raised {task.exception()!r}")
        for resident in residents:
            if resident.leases or resident.leaving or resident.claimed_by:
                self._broken(f"{resident.name} is held by nobody")
            if resident.state is State.UNLOADING:
                self._broken(f"{resident.name} leaves for ever")
        known = {r.engine.pid for r in residents if r.engine is not None}
        if lost := [e.pid for e in self._engines if not e.ended and e.pid not in known]:
            self._broken(f"engines that nobody knows: {lost}")


async def played(events: list[Event]) -> list[str]:
    machine = Machine()
    problems = await machine.play(events)
    await settle()
    return problems
