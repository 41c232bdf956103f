"""Which models are in memory: load on demand, keep while used, unload when idle.

Promises:
- one load per model at a time, shared by everyone who waits for it (single flight);
- a lease keeps its model: nothing evicts or expires it before the lease is given back;
- an unloaded model's process is gone when `unload` returns;
- an engine that died is started again, with back-off, until its crash budget is spent.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Protocol, Self

from swiftlm_proto import messages as m
from swiftlmd.clock import Clock
from swiftlmd.config.settings import Settings
from swiftlmd.engines.engine import Engine, OnProgress
from swiftlmd.engines.placement import OnHosts, Placement, Planner, PriceRequest
from swiftlmd.engines.process import EngineDied, ProcessEnd
from swiftlmd.engines.signs import FEW_QUESTIONS, Observe, unobserved
from swiftlmd.faults import Kind, ModelNotFound, ServiceError
from swiftlmd.residency.crashes import CrashRecord
from swiftlmd.residency.engine_watchdog import watch_engine
from swiftlmd.residency.eviction import Evictor
from swiftlmd.residency.resident import Resident, State
from swiftlmd.store.types import StoredModel

log = logging.getLogger(__name__)

# A load that failed once its engine had been started is not tried again at once. One that could not
# be planned has cost nothing, and files or hosts may have come since.
_COOL_DOWN_S = 5.0
# What a load may be told about the options it brought; nothing is wrong with the model.
_REFUSALS = frozenset(
    {Kind.INVALID, Kind.UNSUPPORTED, Kind.CONTEXT_TOO_LONG, Kind.NOT_ENOUGH_MEMORY, Kind.BUSY}
)
_TICK_S = 1.0  # between two looks at keep-alives
_LONGEST_PAUSE_S = 600.0
# Nothing is wrong with a model for which there is no room.
_NO_ROOM = frozenset({Kind.NOT_ENOUGH_MEMORY, Kind.BUSY})
_STOP_BASE_S = 10.0
_STOP_S_PER_GB = 1.0  # unmapping and unwiring take time; never kill in the middle of it


class Launcher(Protocol):
    async def launch(
        self, placement: Placement, settings: Settings, on_progress: OnProgress
    ) -> Engine: ...


class Store(Protocol):
    async def list(self) -> list[StoredModel]: ...

    async def find(self, name: str) -> StoredModel | None: ...


@dataclass(frozen=True, slots=True)
class Unloaded:
    """What an unload did; `freed_bytes` is the footprint the kernel counted before the end."""

    was_loaded: bool
    freed_bytes: int = 0
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """A loaded model in use."""

    model: str
    engine: Engine
    price_request: PriceRequest
    sampling: m.Sampling  # defaults of its requests


class Residency:
    """Owner of every engine. Used as a context manager: leaving it ends them all."""

    def __init__(
        self,
        *,
        clock: Clock,
        store: Store,
        planner: Planner,
        launcher: Launcher,
        footprint: Callable[[int], Awaitable[int]],
        settings: Callable[[], Settings],
        memory_is_short: Callable[[], bool] = lambda: False,
        observe: Observe = unobserved,
        became_ready: Callable[[m.LoadedModel], None] = lambda loaded: None,
        begins: Callable[[], None] = lambda: None,
    ) -> None:
        """`begins` is told of each load, `became_ready` what its engine says of itself."""
        self._clock = clock
        self._store = store
        self._launcher = launcher
        self._footprint = footprint
        self._settings = settings
        self._observe = observe
        self._became_ready = became_ready
        self._begins = begins
        self._residents: dict[str, Resident] = {}
        self._room = Evictor(clock, planner, self._residents, self._stop, memory_is_short)
        self._tasks = asyncio.TaskGroup()
        self._closing = False
        self._being_removed: set[str] = set()  # their files go: nobody loads them
        self._expiry_changed = asyncio.Event()  # of some model, perhaps

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._ticker = self._tasks.create_task(self._tick())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing = True
        self._ticker.cancel()
        if kind is None:  # else the group cancels its tasks, and each kills its engine
            async with asyncio.TaskGroup() as ends:
                for resident in self.residents:
                    ends.create_task(self._end_at_last(resident))
        await self._tasks.__aexit__(kind, error, trace)

    async def _end_at_last(self, resident: Resident) -> None:
        """The daemon ends also when one of its engines does not."""
        try:
            await self._end(resident, "the daemon is stopping")
        except ServiceError:
            if resident.attending is not None:
                resident.attending.cancel()

    @property
    def residents(self) -> list[Resident]:
        """Every model that is in memory, on its way, or failed; only for reading."""
        return list(self._residents.values())

    def pids(self) -> list[int]:
        """The daemon's own process and those of its engines."""
        return [os.getpid(), *(r.engine.pid for r in self.residents if r.engine)]

    def warnings(self) -> list[str]:
        """Of engines that have not answered a few questions."""
        now = self._clock.now()
        signs = (r.signs.warning(r.name, now) for r in self.residents if r.engine is not None)
        return [warning for warning in signs if warning]

    def held_bytes(self, *, besides: str = "", only: str = "") -> int:
        """What models are priced at: all, all but one, or one alone."""
        return sum(
            resident.priced_bytes
            for resident in self.residents
            if resident.name != besides and only in ("", resident.name)
        )

    def held_elsewhere(self, name: str) -> OnHosts:
        """What models hold on other hosts of a group, as a plan of `name` is to see it."""
        held: Counter[str] = Counter()
        returning: Counter[str] = Counter()
        for resident in self.residents:
            (returning if resident.name == name else held).update(resident.elsewhere)
        return OnHosts(held, returning)

    @asynccontextmanager
    async def lease(self, name: str, keep_alive_s: float | None = None) -> AsyncIterator[Lease]:
        """The model, loaded if need be, kept until the block ends."""
        resident = await self._ready(name)
        engine = resident.engine
        assert engine is not None, "a ready model has an engine"
        if keep_alive_s is not None:
            resident.keep_alive_s = keep_alive_s
        try:
            yield Lease(resident.name, engine, resident.price_request, resident.sampling)
        finally:
            resident.give_back(self._clock.now())
            self._expiry_changed.set()

    def load_progress(self, name: str) -> m.Progress | None:
        """Of the load of this model, while there is one."""
        resident = self._residents.get(name)
        if resident is None or resident.task is None:
            return None
        return m.Progress(stage=resident.load_stage, fraction=resident.progress.fraction)

    async def load(
        self,
        name: str,
        settings: Settings | None = None,
        *,
        pin: bool = False,
        force: bool = False,
    ) -> AsyncIterator[m.LoadEvent]:
        """Loads (or joins a load), with its progress; ends when ready, raises ServiceError."""
        resident = await self._to_load(name, settings, pin=pin, force=force)
        if pin:
            resident.pin(True)
        if resident.state is State.READY:
            return
        resident.force, resident.may_evict = resident.force or force, True
        task = resident.task
        if task is None:
            resident.crashes.clear()
            task = self._begin(resident, force=force)
            resident.is_tried = self._differs(resident)
        while resident.task is task:
            yield resident.progress
            await resident.change()
        if fault := self._fault_of(resident, task):
            raise fault.with_traceback(None)

    def pin(self, name: str, pinned: bool) -> None:
        """Of a model that is loaded or loading, until it is unloaded. Raises ServiceError."""
        resident = self._residents.get(name)
        if resident is None or resident.failed or resident.state is State.UNLOADING:
            raise ServiceError(Kind.INVALID, f"model '{name}' is not loaded; load it with --pin")
        resident.pin(pinned)
        self._expiry_changed.set()

    async def unload(self, name: str, *, force: bool = False) -> Unloaded:
        """The model's process is gone when this returns. Raises ServiceError while it is used."""
        resident = self._residents.get(name)
        if resident is None:
            return Unloaded(was_loaded=False)
        _refuse_if_used(resident, force)
        pid = resident.engine.pid if resident.engine else 0
        freed = await self._end(resident, f"model '{name}' was unloaded")
        return Unloaded(was_loaded=pid != 0, freed_bytes=freed, pid=pid)

    @asynccontextmanager
    async def removing(self, name: str) -> AsyncIterator[None]:
        """The model is not in memory, and is not loaded until the block ends. Raises ServiceError
        while it is used."""
        if name in self._being_removed:
            raise _is_removed(name)
        self._being_removed.add(name)
        try:
            await self.unload(name)
            yield
        finally:
            self._being_removed.discard(name)

    async def evict_idle(self) -> int:
        """Memory is short: every idle model that is not pinned leaves; returns the bytes freed."""
        stops = set()
        for resident in self.residents:
            if resident.may_leave:
                message = f"model '{resident.name}' was unloaded, memory is short"
                stops.add(self._stop(resident, m.Fault(kind=Kind.SHUTTING_DOWN, message=message)))
        if stops:
            await asyncio.wait(stops)
        return sum(stop.result() for stop in stops)

    def take_over(self, before: Settings, now: Settings) -> None:
        """The configuration changed: what needs no new load counts at once."""
        for resident in self.residents:
            resident.take_over(before, now)
        self._expiry_changed.set()

    async def _ready(self, name: str) -> Resident:
        """The model, ready and with one lease taken."""
        while True:
            resident = await self._entry(name, None)
            if resident.usable:
                resident.take(self._clock.now())
                return resident
            if resident.state in (State.READY, State.UNLOADING):
                await self._after_change(resident)
            elif (task := resident.task) is not None:
                resident.may_evict = True  # also when it only starts again after a crash
                await asyncio.wait({task})
                if resident.is_refused:
                    continue  # the options of another caller; this one gets the configured ones
                if fault := self._fault_of(resident, task):
                    raise fault.with_traceback(None)
            else:
                self._refuse_if_hopeless(resident)
                self._begin(resident)

    async def _to_load(
        self, name: str, asked: Settings | None, *, pin: bool, force: bool
    ) -> Resident:
        """The model's entry: ready and staying, or to be loaded, with the options asked for."""
        while True:
            resident = await self._entry(name, asked)
            if asked is not None and resident.state is not State.UNLOADING:
                if resident.loaded_as.load_options() != asked.load_options():
                    pin = pin or resident.pinned
                    await self._make_way(resident, asked, force)
                    continue
                resident.keep_alive_s, resident.settings = asked.models_keep_alive, asked
                resident.asked = asked.asked_beside(self._settings().for_model(resident.name))
                self._expiry_changed.set()
            if pin and resident.state is not State.UNLOADING:
                resident.pin(True)
            if resident.usable or resident.state in (State.LOADING, State.FAILED):
                return resident
            await self._after_change(resident)

    async def _make_way(self, resident: Resident, asked: Settings, force: bool) -> None:
        """A model that shall be loaded otherwise leaves, once it is known that it can be."""
        _refuse_if_used(resident, force)
        other = Resident(resident.stored, asked, CrashRecord(self._clock), asked.models_keep_alive)
        if not force:
            await self._room.check(other, resident)
        if resident is self._residents.get(resident.name):
            _refuse_if_used(resident, force)
            await self._end(resident, f"model '{resident.name}' is loaded with other options")

    async def _after_change(self, resident: Resident) -> None:
        """When something about a model that is here has changed; raises why nothing will."""
        if resident.stuck is not None:
            raise resident.stuck.with_traceback(None)
        await resident.change()

    def _refuse_if_hopeless(self, resident: Resident) -> None:
        fault = resident.fault
        if fault is None or fault.kind in (Kind.NOT_ENOUGH_MEMORY, Kind.BUSY):
            return  # time or other models decide; worth another try
        if isinstance(fault, EngineDied):
            return  # the back-off decides when
        is_cooling = self._clock.now() < resident.failed_at + _COOL_DOWN_S
        if resident.crashes.exhausted or (resident.was_launched and is_cooling):
            raise fault.with_traceback(None)  # else it keeps the frames of all who met it

    async def _entry(self, name: str, settings: Settings | None) -> Resident:
        """The model's entry in the table, made now if there is none. Loads nothing.

        An entry that failed is looked up again: its folder may be whole by now, its settings new.
        """
        resident = self._residents.get(name)
        if resident is not None and not resident.failed:
            return resident
        stored = await self._whole(name)
        chosen = settings or self._settings().for_model(stored.name)
        resident = self._residents.get(stored.name)
        if resident is None:
            resident = Resident(stored, chosen, CrashRecord(self._clock), chosen.models_keep_alive)
            resident.pinned = stored.name in chosen.models_pinned
            self._residents[stored.name] = resident
        elif resident.failed:
            if chosen.load_options() != resident.settings.load_options():
                resident.fault = None  # what failed was something else
            resident.stored, resident.settings, resident.loaded_as = stored, chosen, chosen
        return resident

    async def _whole(self, name: str) -> StoredModel:
        """The model on disk; raises ServiceError when it is not there or not whole."""
        stored = await self._store.find(name)
        if name in self._being_removed:
            raise _is_removed(name)
        if stored is None:
            raise ModelNotFound(name, [model.name for model in await self._store.list()])
        if not stored.ready:
            message = f"model '{name}' cannot be loaded: {stored.reason}"
            raise ServiceError(Kind.MODEL_BROKEN, message)
        return stored

    def _begin(
        self, resident: Resident, *, force: bool = False, evict: bool = True
    ) -> asyncio.Task[ServiceError | None]:
        assert resident.failed, "one load per model at a time"
        if self._closing:  # nobody would end what is loaded now
            raise ServiceError(Kind.SHUTTING_DOWN, "the daemon is stopping")
        resident.state, resident.fault = State.LOADING, None
        resident.force, resident.may_evict, resident.was_launched = force, evict, False
        resident.is_tried = False
        resident.loaded_as = resident.settings
        resident.progress = m.LoadEvent(stage=m.LoadEventStage.READING)
        resident.task = self._tasks.create_task(self._load(resident))
        resident.task.add_done_callback(partial(self._load_ended, resident))
        self._begins()
        return resident.task

    async def _load(self, resident: Resident) -> ServiceError | None:
        """Root of a load's task: books its result and returns the error, raises nothing."""
        started_at = self._clock.now()
        fault: ServiceError
        try:
            await self._clock.sleep(resident.crashes.wait_s())
            resident.loaded_as = settings = resident.settings
            placement = await self._room.make(resident)
            log.info("loading %s", placement.refusal)  # the plan in words, whatever it says
            resident.was_launched = True
            engine = await self._launcher.launch(placement, settings, resident.on_progress)
        except EngineDied as error:
            resident.crashes.add()
            fault = self._worn_out(resident, str(error)) or error
        except ServiceError as error:
            fault = error
        except Exception:
            log.exception("load failed model=%s", resident.name)
            message = f"loading '{resident.name}' failed inside the daemon; see swiftlmd.log"
            fault = ServiceError(Kind.INTERNAL, message)
        else:
            engine.loaded.load_s = took_s = self._clock.now() - started_at
            resident.became_ready(engine, self._clock.now())
            self._became_ready(engine.loaded)
            self._expiry_changed.set()
            resident.attending = self._tasks.create_task(self._attend(resident, engine))
            log.info("model ready model=%s pid=%d s=%.2f", resident.name, engine.pid, took_s)
            return None
        self._failed(resident, fault)
        return fault

    def _load_ended(self, resident: Resident, task: asyncio.Task[ServiceError | None]) -> None:
        """Also of a load that was cancelled, perhaps before its first step."""
        if task.cancelled():
            self._failed(resident, _cancelled(resident))
        resident.task = None
        resident.notify()

    def _fault_of(
        self, resident: Resident, task: asyncio.Task[ServiceError | None]
    ) -> ServiceError | None:
        """Why a load that has ended failed, if it did."""
        return _cancelled(resident) if task.cancelled() else task.result()

    def _failed(self, resident: Resident, error: ServiceError) -> None:
        log.error("load failed model=%s: %s", resident.name, error)
        resident.state, resident.fault = State.FAILED, error
        resident.failed_at = self._clock.now()
        if resident.was_launched:
            self._room.returned(resident.priced_bytes, resident.elsewhere)
        resident.priced_bytes, resident.elsewhere = 0, {}
        if resident.is_tried and error.kind in _REFUSALS:
            resident.is_refused = True
            self._forget(resident)
        elif error.kind in _NO_ROOM and not resident.was_launched and not resident.has_served:
            self._forget(resident)  # a refusal: it is on the disk as before

    def _differs(self, resident: Resident) -> bool:
        """Whether it is loaded with options that the configuration does not have."""
        configured = self._settings().for_model(resident.name)
        return resident.settings.load_options() != configured.load_options()

    async def _attend(self, resident: Resident, engine: Engine) -> None:
        """Root of an engine's task: from ready to gone."""
        try:
            end = await watch_engine(
                engine, lambda: resident.watched_by, self._clock, resident.signs, self._observe
            )
        except Exception:
            log.exception("attending an engine failed model=%s", resident.name)
            engine.kill("the daemon lost hold of the engine")
            end = None
        self._room.returned(resident.priced_bytes, resident.elsewhere)
        resident.engine, resident.priced_bytes, resident.elsewhere = None, 0, {}
        resident.gone.set()
        if resident.stopping is not None:
            self._forget(resident)
        else:
            resident.state = State.FAILED
            self._crashed(resident, end)
        resident.notify()

    def _crashed(self, resident: Resident, end: ProcessEnd | None) -> None:
        log.error("engine died model=%s: %s", resident.name, end)
        resident.crashes.add()
        if fault := self._worn_out(resident, str(end)):
            self._failed(resident, fault)
        elif self._closing:
            self._failed(resident, ServiceError(Kind.SHUTTING_DOWN, "the daemon is stopping"))
        else:
            self._begin(resident, evict=False)  # others' memory is not taken unasked

    def _worn_out(self, resident: Resident, reason: str) -> ServiceError | None:
        """The fault of a model whose crash budget is spent."""
        if not resident.crashes.exhausted:
            return None
        message = (
            f"the engine of model '{resident.name}' keeps stopping: {reason}; "
            f"try again with `swiftlmctl load {resident.name}`"
        )
        return ServiceError(Kind.MODEL_BROKEN, message)

    async def _end(self, resident: Resident, why: str) -> int:
        """Ends the model in whatever state it is; returns the bytes it held. Raises ServiceError
        when its process cannot be ended. It ends also when the caller does not wait for it."""
        while resident.task is not None:
            resident.task.cancel()
            await asyncio.wait({resident.task})
        if resident.state is State.READY:
            self._stop(resident, m.Fault(kind=Kind.SHUTTING_DOWN, message=why))
        if resident.stopping is None:
            self._forget(resident)
            resident.notify()
            return 0
        await asyncio.wait({resident.stopping})
        if resident.stuck is not None:
            raise resident.stuck.with_traceback(None)
        return resident.stopping.result()

    def _forget(self, resident: Resident) -> None:
        if self._residents.get(resident.name) is resident:
            del self._residents[resident.name]

    def _stop(self, resident: Resident, reason: m.Fault) -> asyncio.Task[int]:
        """Begins the end of a ready model's engine; no lease is given from here on."""
        if resident.stopping is None:
            resident.state = State.UNLOADING
            resident.stopping = self._tasks.create_task(self._stopped(resident, reason))
            resident.notify()
        return resident.stopping

    async def _stopped(self, resident: Resident, reason: m.Fault) -> int:
        """Root of a stop's task, which no caller cancels: books its result, raises nothing."""
        engine = resident.engine
        assert engine is not None, "a ready model has an engine"
        held = resident.priced_bytes
        try:
            held = await self._footprint(engine.pid)
            patience_s = _STOP_BASE_S + _STOP_S_PER_GB * held / 1e9
            if resident.signs.num_unanswered >= FEW_QUESTIONS:
                patience_s = 0.0  # it hears nothing: it is killed at once
            end = await engine.stop(patience_s, reason)
            log.info(
                "model unloaded model=%s pid=%d freed=%d: %s", resident.name, end.pid, held, end
            )
        except ServiceError as error:
            log.error("model cannot be unloaded model=%s: %s", resident.name, error)
            resident.fault = error
            resident.notify()
            return 0
        except Exception:
            log.exception("unloading failed, ending the engine model=%s", resident.name)
            engine.kill("its end failed inside the daemon")
        await resident.gone.wait()
        return held

    async def _tick(self) -> None:
        """Unloads what has been idle for longer than its keep-alive."""
        while True:
            await self._clock.wait(self._expiry_changed, self._pause_s())
            self._expiry_changed.clear()
            for resident in self.residents:
                if self._clock.now() >= resident.expires_at() and not resident.leaving:
                    message = f"model '{resident.name}' was idle"
                    self._stop(resident, m.Fault(kind=Kind.SHUTTING_DOWN, message=message))

    def _pause_s(self) -> float:
        """Until the next model expires, if none of them is used or loaded before."""
        expires_at = min(
            (r.expires_at() for r in self.residents if not r.leaving), default=math.inf
        )
        return min(max(expires_at - self._clock.now(), _TICK_S), _LONGEST_PAUSE_S)


def _refuse_if_used(resident: Resident, force: bool) -> None:
    if resident.leases and not force:
        message = (
            f"model '{resident.name}' is answering {resident.leases} request(s); "
            f"wait for them or add --force"
        )
        raise ServiceError(Kind.BUSY, message, retry_after_s=5)


def _is_removed(name: str) -> ServiceError:
    return ServiceError(Kind.BUSY, f"model '{name}' is being removed", retry_after_s=5)


def _cancelled(resident: Resident) -> ServiceError:
    return ServiceError(Kind.SHUTTING_DOWN, f"the load of '{resident.name}' was cancelled")
