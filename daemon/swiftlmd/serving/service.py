"""The daemon as its clients see it: models by name, requests in, events out.

HTTP dialects and the admin service come through here; nothing else gives out leases. Promise:
an accepted request is listed from its first moment to its last event, and ends exactly once.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from swiftlm_proto import messages as m
from swiftlmd.clock import Clock
from swiftlmd.config.settings import NEVER, Settings
from swiftlmd.faults import Kind, ModelNotFound, ServiceError, from_fault
from swiftlmd.lifecycle.instance import Instance
from swiftlmd.memory.machine import Machine, own_bytes
from swiftlmd.residency.residency import Lease, Residency, Store
from swiftlmd.residency.resident import State, stored_status
from swiftlmd.serving.admission import Admission
from swiftlmd.serving.names import ModelNames
from swiftlmd.serving.requests import ActiveRequest, RequestTable
from swiftlmd.store.reader import STILL_READING
from swiftlmd.store.sampling_defaults import completed
from swiftlmd.store.store import Download
from swiftlmd.store.types import PullProgress, StoredModel

log = logging.getLogger(__name__)

_TELL_S = 1.0  # between two looks at a load that a request waits for


class Observer(Protocol):
    """Told of every request's end; `alone` = no other was under way then."""

    def __call__(self, model: str, finished: m.Finished, *, alone: bool) -> None: ...


def _look_away(model: str, finished: m.Finished, *, alone: bool) -> None:
    """Nobody measures."""


class DownloadingStore(Store, Protocol):
    def downloads(self) -> Sequence[Download]: ...

    def pull(self, name: str) -> AsyncGenerator[PullProgress, None]: ...


@dataclass(frozen=True, slots=True)
class DaemonInfo:
    """What stays the same while the daemon runs, and what it has to warn of."""

    instance: Instance
    supervisor: str
    config_path: Path
    log_folder: Path
    warnings: Callable[[], list[str]] = list


class Service:
    """Implements `backend.Backend`."""

    def __init__(
        self,
        *,
        clock: Clock,
        about: DaemonInfo,
        settings: Callable[[], Settings],
        residency: Residency,
        store: DownloadingStore,
        machine: Machine,
        admission: Admission,
        observe: Observer = _look_away,
        begins: Callable[[], None] = lambda: None,
    ) -> None:
        """`begins` is told when the first request of a busy time has come."""
        self._clock = clock
        self._about = about
        self._settings = settings
        self._store = store
        self._machine = machine
        self._admission = admission
        self._observe = observe
        self.residency = residency
        self.requests = RequestTable(clock, begins)
        self.names = ModelNames(settings, self._latest_used)
        self.draining = False
        self._stored: list[StoredModel] = []
        self._shown: dict[str, tuple[StoredModel, m.ModelStatus]] = {}  # rows of `status`, kept
        self._started_at = clock.now()

    async def list_models(self) -> list[m.ModelStatus]:
        self._stored = await self._store.list()
        self.names.learn(model.name for model in self._stored)
        self._shown = dict(map(self._row, self._stored))
        return self._with_residents({model.name: stored_status(model) for model in self._stored})

    def _row(self, model: StoredModel) -> tuple[str, tuple[StoredModel, m.ModelStatus]]:
        """The one of before while the model is: whoever has written it need not do so again."""
        known = self._shown.get(model.name)
        if known is not None and known[0] == model:
            return model.name, known
        return model.name, (model, stored_status(model))

    @property
    def reads_models(self) -> bool:
        """Whether a folder was still being read when the models were last listed."""
        return any(model.reason.endswith(STILL_READING) for model in self._stored)

    async def generate(
        self, model: str, request: m.GenerateRequest, *, route: str, client: str = ""
    ) -> AsyncGenerator[m.SequenceEvent, None]:
        self.refuse_while_draining()
        name = await self.named(model)
        request.request_id = request.request_id or uuid.uuid4().hex
        with self.requests.track(request.request_id, name, route, client) as active:
            async with aclosing(self._fetched(active)) as steps:
                async for step in steps:
                    yield m.SequenceEvent(request_id=request.request_id, progress=step)
            async with aclosing(self._events(active, request)) as events:
                async for event in events:
                    active.note(event)
                    if self.draining:
                        _say_that_the_service_stops(event)
                    if event.finished is not None:
                        self.requests.count(event.finished)
                        self._observe(name, event.finished, alone=len(self.requests) == 1)
                    yield event

    async def _fetched(self, active: ActiveRequest) -> AsyncGenerator[m.Progress, None]:
        """Fetches a hub model that is not here, if the owner allows that. Nothing else is fetched:
        a client's path never is."""
        repo = self.names.to_fetch(active.model)
        if not repo:
            self._refuse_unknown(active.model)
            return
        async with aclosing(self._store.pull(repo)) as reports:
            async for report in reports:
                if active.cancelled:
                    raise _cancelled()
                yield m.Progress(done_bytes=report.done_bytes, total_bytes=report.total_bytes)
        await self.list_models()
        active.model = self.names.resolve(active.model)

    async def _here(self, model: str) -> str:
        """`named`, and fetched as `_fetched` does, where a reply has no place for progress."""
        name = await self.named(model)
        if repo := self.names.to_fetch(name):
            async with aclosing(self._store.pull(repo)) as reports:
                async for _ in reports:
                    pass
            await self.list_models()
        name = self.names.resolve(name)
        self._refuse_unknown(name)
        return name

    def _refuse_unknown(self, name: str) -> None:
        """All was listed for that name a moment ago; a load would list it twice more."""
        if self.names.knows(name) or any(r.name == name for r in self.residency.residents):
            return
        raise ModelNotFound(name, [model.name for model in self._stored])

    async def _events(
        self, active: ActiveRequest, request: m.GenerateRequest
    ) -> AsyncGenerator[m.SequenceEvent, None]:
        """What the engine says. A request that never reached a dying engine goes to the next one,
        once. One that did reach it does not: it may be what ended it."""
        for may_repeat in (True, False):
            async with AsyncExitStack() as stack:
                leasing = asyncio.create_task(self._leased(stack, active, request))
                async with aclosing(self._loading(leasing, active.model)) as steps:
                    async for step in steps:
                        yield m.SequenceEvent(request_id=active.request_id, progress=step)
                lease = leasing.result()
                request.sampling = completed(request.sampling, lease.sampling)
                await self._admission.admit(request, lease.model, lease.price_request)
                active.engine = lease.engine
                if active.cancelled:
                    raise _cancelled()
                if may_repeat and lease.engine.ended:  # while it waited for memory
                    continue
                events = await stack.enter_async_context(
                    aclosing(lease.engine.client.generate(request))
                )
                reached = False
                try:
                    async for event in events:
                        reached = True
                        yield event
                    return
                except ServiceError:
                    if reached or not may_repeat or not lease.engine.ended:
                        raise
            log.warning("engine ended before a request reached it request=%s", active.request_id)

    async def _loading(
        self, leasing: asyncio.Task[Lease], model: str
    ) -> AsyncGenerator[m.Progress, None]:
        """How far the load is that a request waits for. The wait ends with its listener."""
        try:
            while not leasing.done():
                await asyncio.wait({leasing}, timeout=_TELL_S)
                step = None if leasing.done() else self.residency.load_progress(model)
                if step is not None:
                    yield step
        finally:
            leasing.cancel()
            await asyncio.wait({leasing})
            if not leasing.cancelled():
                leasing.exception()  # asyncio logs what nobody has looked at

    async def tokenize(self, model: str, request: m.TokenizeRequest) -> m.TokenizeReply:
        self.refuse_while_draining()
        async with self.residency.lease(await self._here(model)) as lease:
            reply = await lease.engine.client.tokenize(request)
        _raise(reply.fault)
        return reply

    async def detokenize(self, model: str, request: m.DetokenizeRequest) -> m.DetokenizeReply:
        self.refuse_while_draining()
        async with self.residency.lease(await self._here(model)) as lease:
            reply = await lease.engine.client.detokenize(request)
        _raise(reply.fault)
        return reply

    async def embed(
        self, model: str, request: m.EmbedRequest, *, request_id: str = "", client: str = ""
    ) -> m.EmbedReply:
        self.refuse_while_draining()
        name = await self.named(model)
        identity = request_id or uuid.uuid4().hex
        with self.requests.track(identity, name, "embeddings", client) as active:
            async with aclosing(self._fetched(active)) as steps:
                async for _ in steps:  # a reply without a stream has no place for progress
                    pass
            try:
                # An engine cannot be told to abort it; leaving the call does.
                async with active.waits_to_load(asyncio.timeout(None)):
                    reply = await self._embedded(active, request)
            except TimeoutError:
                raise _cancelled() from None
            _raise(reply.fault)
        return reply

    async def _embedded(self, active: ActiveRequest, request: m.EmbedRequest) -> m.EmbedReply:
        while True:
            async with self.residency.lease(active.model) as lease:
                await self._admission.admit_texts(request, lease.model, lease.price_request)
                if lease.engine.ended:  # while it waited for memory
                    continue
                active.state.phase = "prefill"
                return await lease.engine.client.embed(request)

    async def status(self) -> m.DaemonStatus:
        about, instance = self._about, self._about.instance
        # What lay on disk when it was last listed, and what is loaded now. Nobody changes the rows.
        models = self._with_residents({name: row for name, (_, row) in self._shown.items()})
        return m.DaemonStatus(
            protocol=m.PROTOCOL,
            version=instance.version,
            pid=instance.pid,
            instance_id=instance.instance_id,
            started_at=instance.started_at,
            uptime_s=self._clock.now() - self._started_at,
            state="draining" if self.draining else "ready",
            http_address=instance.http,
            https_address=instance.https,
            models=models,
            machine=self._machine.status(models),
            requests=self.requests.accepted,
            errors=self.requests.failed,
            in_flight=len(self.requests),
            default_model=self.names.default(),
            aliases=dict(self._settings().models_aliases),
            warnings=about.warnings(),
            supervisor=about.supervisor,
            config_path=str(about.config_path),
            log_dir=str(about.log_folder),
            daemon_bytes=own_bytes(),
            downloads=[_download(found) for found in self._store.downloads()],
        )

    async def named(self, model: str) -> str:
        """The model that a client's name means, by what lies here now."""
        if not self.names.is_sure(model):
            await self.list_models()
        return self.names.resolve(model)

    async def _leased(
        self,
        stack: AsyncExitStack,
        active: ActiveRequest,
        request: m.GenerateRequest,
    ) -> Lease:
        keep_alive = request.keep_alive_s
        keep_s = None if keep_alive is None else NEVER if keep_alive < 0 else float(keep_alive)
        loading = active.waits_to_load(asyncio.timeout(request.deadline_s or None))
        try:
            async with loading:
                return await stack.enter_async_context(self.residency.lease(active.model, keep_s))
        except TimeoutError:
            if active.cancelled:
                raise _cancelled() from None
            message = f"model '{active.model}' was not ready within {request.deadline_s:g} s"
            raise ServiceError(Kind.DEADLINE, message) from None
        finally:
            active.loading = None  # a wait that is over cannot be cut short

    def refuse_while_draining(self) -> None:
        """Raises ServiceError once the daemon has been told to stop."""
        if self.draining:
            message = "the service is stopping; try again in a moment"
            raise ServiceError(Kind.SHUTTING_DOWN, message, retry_after_s=5)

    def _with_residents(self, rows: dict[str, m.ModelStatus]) -> list[m.ModelStatus]:
        for resident in self.residency.residents:
            rows[resident.name] = resident.to_status(self._clock)
        return list(rows.values())

    def _latest_used(self) -> str | None:
        ready = [r for r in self.residency.residents if r.state is State.READY]
        return max(ready, key=lambda r: r.used_at).name if ready else None


def _say_that_the_service_stops(event: m.SequenceEvent) -> None:
    """An engine knows only that its model goes."""
    fault = event.finished.fault if event.finished else None
    if fault is not None and fault.kind is Kind.SHUTTING_DOWN:
        fault.message = "the service is stopping; try again in a moment"


def _cancelled() -> ServiceError:
    return ServiceError(Kind.ABORTED, "the request was cancelled")


def _download(found: Download) -> m.DownloadStatus:
    progress = found.progress
    return m.DownloadStatus(
        model=found.name,
        done_bytes=progress.done_bytes,
        total_bytes=progress.total_bytes,
        bytes_per_s=progress.bytes_per_s,
        eta_s=progress.eta_s,
        state=progress.stage.value,
    )


def _raise(fault: m.Fault | None) -> None:
    if fault is not None:
        raise from_fault(fault)
