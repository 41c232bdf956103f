"""Fakes of the daemon's surroundings: a clock that is told the time, memory that is told sizes,
models and engines that exist only in name.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from swiftlm_proto import messages as m
from swiftlmd.config.settings import Settings
from swiftlmd.engines.engine import OnProgress
from swiftlmd.engines.placement import NOTHING_ELSEWHERE, OnHosts, Placement
from swiftlmd.engines.process import ProcessEnd
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.store.types import ModelSource, PullProgress, Stage, StoredModel


class FakeClock:
    """Time moves only when a test says so (`advance`), and then wakes who waited for it."""

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now
        self._date = 1_700_000_000.0
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._now

    def date(self) -> float:
        return self._date

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self._now + seconds, next(self._order), future))
        await future

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        if event.is_set() or seconds <= 0:
            return event.is_set()
        timer = asyncio.ensure_future(self.sleep(seconds))
        waiter = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait({timer, waiter}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            waiter.cancel()
        return event.is_set()

    def jump_date(self, seconds: float) -> None:
        """The machine's date changes; monotonic time does not."""
        self._date += seconds

    async def advance(self, seconds: float) -> None:
        """Lets time pass; everything that becomes due runs before this returns."""
        end = self._now + seconds
        await settle()
        while self._waiting and self._waiting[0][0] <= end:
            due, _, future = heapq.heappop(self._waiting)
            self._date += due - self._now
            self._now = due
            if not future.done():
                future.set_result(None)
                await settle()
        self._date += end - self._now
        self._now = end
        await settle()


async def settle(turns: int = 20) -> None:
    """Lets every task that can run, run."""
    for _ in range(turns):
        await asyncio.sleep(0)


@dataclass(slots=True)
class FakeMemory:
    """A machine whose processes hold what a test says they hold."""

    total: int = 16 * 10**9
    others: int = 2 * 10**9  # held by the rest of the machine
    held: dict[int, int] = field(default_factory=dict)  # pid -> bytes

    def total_bytes(self) -> int:
        return self.total

    def available_bytes(self) -> int:
        return self.total - self.others - sum(self.held.values())

    async def footprint_bytes(self, pid: int) -> int:
        return self.held.get(pid, 0)


def stored_model(name: str, size_bytes: int = 10**9, reason: str = "") -> StoredModel:
    return StoredModel(
        name=name,
        path=Path("/models") / name,
        source=ModelSource.LOCAL,
        size_bytes=size_bytes,
        ready=not reason,
        reason=reason,
        model_type="llama",
        context=4096,
        quantization="4-bit",
        vision=False,
    )


class FakeStore:
    """Models that a test names."""

    def __init__(self, *models: StoredModel) -> None:
        self.models = {model.name: model for model in models}
        self.hub: dict[str, StoredModel] = {}  # what `pull` brings
        self.pulled: list[str] = []
        self.pull_goes_on = asyncio.Event()
        self.pull_goes_on.set()

    async def pull(self, name: str) -> AsyncGenerator[PullProgress, None]:
        self.pulled.append(name)
        if name not in self.hub:
            raise ServiceError(Kind.INVALID, f"the hub has no {name}")
        for done in (0, 50, 100):
            yield PullProgress(Stage.DOWNLOAD, done, 100)
            await self.pull_goes_on.wait()
        self.models[name] = self.hub[name]

    async def list(self) -> list[StoredModel]:
        return list(self.models.values())

    async def find(self, name: str) -> StoredModel | None:
        return self.models.get(name)

    def downloads(self) -> tuple[()]:
        return ()


class FakePlanner:
    """A model needs its size on disk; it fits when the memory is there (`FakeMemory`)."""

    def __init__(self, memory: FakeMemory, budget: int | None = None) -> None:
        self.memory = memory
        self.budget = budget or memory.total
        self.faults: list[ServiceError] = []  # raised by the next plans
        self.expanded: dict[str, int] = {}  # of a model's bytes, what float32 weights add

    async def place(
        self,
        model: StoredModel,
        settings: Settings,
        *,
        held_bytes: int,
        returning_bytes: int,
        elsewhere: OnHosts = NOTHING_ELSEWHERE,
        force: bool = False,
    ) -> Placement:
        if self.faults:
            raise self.faults.pop(0)
        needed = model.size_bytes
        room = self.memory.available_bytes() + returning_bytes
        available = min(self.budget - held_bytes, room)
        return Placement(
            request=m.LoadRequest(model=model.name, path=str(model.path)),
            needed_bytes=needed,
            fits=force or needed <= available,
            refusal=f"model '{model.name}' needs {needed}, {available} available",
            plan="{}",
            forced=force,
            expanded_bytes=self.expanded.get(model.name, 0),
            sampling=m.Sampling(temperature=0.5, top_k=20),
        )


class FakeEngineClient:
    """Requests end when the test says so."""

    def __init__(self) -> None:
        self.busy = asyncio.Event()
        self.stats_reply: m.EngineStats | None = m.EngineStats()
        self.aborted: list[str] = []
        self.requests: list[m.GenerateRequest] = []
        self.events: asyncio.Queue[m.SequenceEvent] = asyncio.Queue()
        self.embedding: asyncio.Queue[m.EmbedReply] = asyncio.Queue()
        self.packs = 0  # bytes that quantizing the weights again gives back
        self.on_pack: Callable[[int], None] = lambda freed: None

    async def cache(self, request: m.CacheRequest) -> m.CacheReply:
        if request.expanded is False:
            self.on_pack(self.packs)
            self.packs = 0
        return m.CacheReply()

    async def stats(self, timeout_s: float) -> m.EngineStats:
        if self.stats_reply is None:
            raise ServiceError(Kind.DEADLINE, "the engine did not answer in time")
        return self.stats_reply

    async def tokenize(self, request: m.TokenizeRequest) -> m.TokenizeReply:
        return m.TokenizeReply(ids=[1])

    async def detokenize(self, request: m.DetokenizeRequest) -> m.DetokenizeReply:
        return m.DetokenizeReply(text="a")

    async def generate(self, request: m.GenerateRequest) -> AsyncGenerator[m.SequenceEvent, None]:
        self.requests.append(request)
        finished = False
        try:
            while not finished:
                event = await self.events.get()
                finished = event.finished is not None
                yield event
        finally:
            if not finished:
                self.aborted.append(request.request_id)

    async def embed(self, request: m.EmbedRequest) -> m.EmbedReply:
        return await self.embedding.get()

    def abort(self, request_id: str) -> bool:
        self.aborted.append(request_id)
        end = m.Finished(reason=m.FinishedReason.ABORT)
        self.events.put_nowait(m.SequenceEvent(request_id=request_id, finished=end))
        return True


class FakeLoadedEngine:
    """What residency sees of an engine process, without the process."""

    def __init__(self, model: str, pid: int, memory: FakeMemory, size_bytes: int) -> None:
        self.pid = pid
        self.loaded = m.LoadedModel(model=model, device="cpu")
        self.stats = m.EngineStats()
        self.client = FakeEngineClient()
        self.stop_deadline_s: float | None = None
        self.killed_for = ""
        self.hold_stop = asyncio.Event()  # a stop waits for this
        self.hold_stop.set()
        self._memory = memory
        self._end: asyncio.Future[ProcessEnd] = asyncio.get_running_loop().create_future()
        memory.held[pid] = size_bytes

    @property
    def ended(self) -> bool:
        return self._end.done()

    async def run(self) -> ProcessEnd:
        return await asyncio.shield(self._end)

    async def stop(self, deadline_s: float, reason: m.Fault) -> ProcessEnd:
        self.stop_deadline_s = deadline_s
        held = asyncio.ensure_future(self.hold_stop.wait())
        try:  # as of a process: a stop is over when it has ended, whoever ended it
            await asyncio.wait({held, self._end}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            held.cancel()
        self.die(0)
        return await self._end

    def kill(self, reason: str) -> None:
        self.killed_for = reason
        self.die(-9)

    def give_back(self, freed: int) -> None:
        self._memory.held[self.pid] -= freed

    def die(self, code: int) -> None:
        self._memory.held.pop(self.pid, None)
        if not self._end.done():
            self._end.set_result(ProcessEnd(self.pid, code, f"it ended with {code}", ""))


class FakeLauncher:
    """Loads at once, or when `gate` opens; `faults` fail the next loads, one each."""

    def __init__(self, memory: FakeMemory) -> None:
        self.memory = memory
        self.launched: list[str] = []
        self.forced: set[str] = set()
        self.engines: dict[str, FakeLoadedEngine] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.faults: list[ServiceError] = []
        self._pids = itertools.count(100)

    async def launch(
        self, placement: Placement, settings: Settings, on_progress: OnProgress
    ) -> FakeLoadedEngine:
        model = placement.request.model
        self.launched.append(model)
        if placement.request.force:
            self.forced.add(model)
        on_progress(m.LoadEvent(stage=m.LoadEventStage.WEIGHTS, fraction=0.5))
        await self.gate.wait()
        if self.faults:
            raise self.faults.pop(0)
        engine = FakeLoadedEngine(model, next(self._pids), self.memory, placement.needed_bytes)
        engine.client.packs = placement.expanded_bytes
        engine.client.on_pack = engine.give_back
        self.engines[model] = engine
        return engine
