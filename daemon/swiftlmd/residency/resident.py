"""One model that is loaded, on its way in, on its way out, or that failed to load."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from swiftlm_proto import messages as m
from swiftlmd.clock import Clock
from swiftlmd.config.settings import Settings
from swiftlmd.engines.engine import Engine
from swiftlmd.engines.placement import PriceRequest, free_of_charge
from swiftlmd.engines.signs import Signs
from swiftlmd.faults import ServiceError
from swiftlmd.residency.crashes import CrashRecord
from swiftlmd.store.types import StoredModel


class State(Enum):
    LOADING = m.ModelStatusState.LOADING
    READY = m.ModelStatusState.READY
    UNLOADING = m.ModelStatusState.UNLOADING
    FAILED = m.ModelStatusState.FAILED


@dataclass(slots=True, eq=False)
class Resident:
    """Owned by Residency; only its methods and tasks change it."""

    stored: StoredModel
    settings: Settings  # of its next start; what needs no new start counts at once
    crashes: CrashRecord
    keep_alive_s: float
    asked: Mapping[str, Any] = field(default_factory=dict)  # fields that a load set for itself
    state: State = State.FAILED  # until a load begins
    pinned: bool = False
    claimed_by: Resident | None = None  # the model that is to get its memory
    leaving: bool = False  # it drains for that model: takes no new leases
    leases: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # the engine's end is booked
    task: asyncio.Task[ServiceError | None] | None = None  # the load under way; why it failed
    force: bool = False  # of that load: past the budget
    may_evict: bool = True  # of that load: somebody waits for it
    is_tried: bool = False  # of that load: with options that only its caller wants
    has_served: bool = False  # at some time, since it is here
    is_refused: bool = False  # so loaded, it was refused and forgotten
    turn: int = 0  # of that load, in the order in which loads ask for room
    stopping: asyncio.Task[int] | None = None  # ends the engine; the bytes it held
    attending: asyncio.Task[None] | None = None  # from ready to gone
    engine: Engine | None = None
    signs: Signs = field(default_factory=lambda: Signs(0.0))  # of that engine
    priced_bytes: int = 0
    elsewhere: Mapping[str, int] = field(default_factory=dict)  # its ranks' bytes, by host
    expanded_bytes: int = 0  # of those, what quantizing its weights again would give back
    price_request: PriceRequest = free_of_charge
    plan: str = ""
    sampling: m.Sampling = field(default_factory=m.Sampling)  # where a request says nothing
    progress: m.LoadEvent = field(default_factory=m.LoadEvent)
    fault: ServiceError | None = None
    failed_at: float = -math.inf
    was_launched: bool = False  # whether the last load got as far as starting an engine
    ready_at: float = -math.inf
    used_at: float = -math.inf
    loaded_as: Settings = field(init=False)  # what the engine was started with
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return self.stored.name

    def __post_init__(self) -> None:
        self.loaded_as = self.settings
        self.idle.set()

    @property
    def load_stage(self) -> str:
        told = self.progress.stage
        return (told.name or "").lower() if told else "starting"

    @property
    def failed(self) -> bool:
        """Neither loaded nor on its way."""
        return self.state is State.FAILED and self.task is None

    @property
    def usable(self) -> bool:
        """Ready, staying, and its engine is not on its way out (killed, its end not yet booked)."""
        alive = self.engine is not None and not self.engine.ended
        return self.state is State.READY and not self.leaving and alive

    @property
    def holds_memory(self) -> bool:
        """It has an engine, or one is being started: not only booked."""
        return self.engine is not None or (self.state is State.LOADING and self.was_launched)

    @property
    def stuck(self) -> ServiceError | None:
        """Why its engine cannot be ended, if it cannot."""
        return self.fault if self.state is State.UNLOADING else None

    @property
    def watched_by(self) -> Settings:
        """What its engine is judged by: the newest limits, and whether it leads a group."""
        cluster = self.loaded_as.engine_cluster
        return dataclasses.replace(self.settings, engine_cluster=cluster)

    @property
    def may_leave(self) -> bool:
        """To make room: ready, idle, not pinned, and not on its way out already."""
        idle = self.state is State.READY and not self.leases
        return idle and not self.pinned and not self.leaving

    @property
    def footprint_bytes(self) -> int:
        """As the engine last said."""
        return self.engine.stats.footprint_bytes if self.engine else 0

    async def change(self) -> None:
        """Until the state, the progress or `leaving` has changed."""
        await self._changed.wait()

    def notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def on_progress(self, event: m.LoadEvent) -> None:
        self.progress = event
        self.notify()

    def became_ready(self, engine: Engine, now: float) -> None:
        self.has_served = True
        self.engine, self.state = engine, State.READY
        self.ready_at = self.used_at = now
        self.signs = Signs(now)
        self.gone.clear()

    def pin(self, pinned: bool) -> None:
        """A pinned model stays, also one that was about to make room."""
        self.pinned = pinned
        if pinned:
            self.released()

    def released(self) -> None:
        """Nobody gets its memory; it may be used."""
        self.claimed_by, self.leaving = None, False
        self.notify()

    def take(self, now: float) -> None:
        self.leases += 1
        self.used_at = now
        self.idle.clear()

    def give_back(self, now: float) -> None:
        self.leases -= 1
        self.used_at = now
        if self.leases == 0:
            self.idle.set()

    def take_over(self, before: Settings, now: Settings) -> None:
        """The last word counts: the configuration's here, of what it changes."""
        keep_alive_s = now.for_model(self.name).models_keep_alive
        if keep_alive_s != before.for_model(self.name).models_keep_alive:
            self.keep_alive_s = keep_alive_s
        pinned = self.name in now.models_pinned
        if pinned != (self.name in before.models_pinned):
            self.pin(pinned)
        self.settings = dataclasses.replace(now.for_model(self.name), **self.asked)

    def expires_at(self) -> float:
        """On the monotonic clock; infinity while it is used or never expires."""
        if self.leases or self.pinned or self.state is not State.READY:
            return math.inf
        return self.used_at + self.keep_alive_s

    def to_status(self, clock: Clock) -> m.ModelStatus:
        status = stored_status(self.stored)
        status.state = self.state.value
        status.error = self.fault.message if self.fault and self.state is State.FAILED else ""
        status.priced_bytes, status.plan = self.priced_bytes, self.plan
        status.pinned, status.leases = self.pinned, self.leases
        status.restarts = self.crashes.total
        if not math.isinf(expires_at := self.expires_at()):
            status.expires_at = clock.date() + expires_at - clock.now()
        if self.task is not None:
            status.load_fraction = self.progress.fraction
            status.load_stage = self.load_stage
        if self.engine is not None:
            status.pid = self.engine.pid
            status.loaded, status.stats = self.engine.loaded, self.engine.stats
            status.footprint_bytes = self.footprint_bytes
            self._tell_signs(status, clock.now())
        return status

    def _tell_signs(self, status: m.ModelStatus, now: float) -> None:
        status.last_sign_s = max(0.0, now - self.signs.answered_at)
        status.silent_s = self.signs.silent_s(now)
        status.condition = self.signs.condition(now).value
        status.unhealthy = self.signs.stuck_s(now) > self.watched_by.engine_stall / 2


def stored_status(model: StoredModel) -> m.ModelStatus:
    """The status of a model that is only on disk."""
    return m.ModelStatus(
        model=model.name,
        state=m.ModelStatusState.CACHED if model.ready else m.ModelStatusState.BROKEN,
        error=model.reason,
        size_bytes=model.size_bytes,
        path=str(model.path),
        source=model.source.value,
        context=model.context,
        vision=model.vision,
        model_type=model.model_type,
        quantization=model.quantization,
        tools=model.tools,
        reasoning=model.reasoning,
        licence=model.licence,
    )
