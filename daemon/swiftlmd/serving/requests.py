"""The requests under way, by id: who sent them, how far they are, and a way to end them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from swiftlm_proto import messages as m
from swiftlmd.clock import Clock
from swiftlmd.engines.engine import Engine
from swiftlmd.faults import Kind, ServiceError

_ENDED_WELL = (m.FinishedReason.STOP, m.FinishedReason.LENGTH, m.FinishedReason.TOOL_CALLS)


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """One request from acceptance to its last event."""

    request_id: str
    model: str
    route: str
    client: str
    started_at: float
    loading: asyncio.Timeout | None = None  # the wait for the model; cut short by `cancel`
    cancelled: bool = False
    engine: Engine | None = None  # while it is there to be asked
    state: m.RequestState = field(default_factory=m.RequestState)

    @property
    def begun(self) -> bool:
        """The engine has said that it took the request up."""
        return self.state.phase != "loading"

    def waits_to_load(self, loading: asyncio.Timeout) -> asyncio.Timeout:
        """`loading` is what `cancel` cuts short from now on."""
        self.engine, self.loading = None, loading
        return loading

    def cancel(self) -> None:
        """Ends it: at the engine, where its `finished` event follows, or while it waits."""
        self.cancelled = True
        if self.engine is not None:
            self.engine.client.abort(self.request_id)
        elif self.loading is not None and not self.loading.expired():
            self.loading.reschedule(asyncio.get_running_loop().time())

    def note(self, event: m.SequenceEvent) -> None:
        if event.delta is not None:
            self.state.phase = "decode"
            self.state.completion_tokens += 1  # at least; the engine's own count comes last
        elif event.started is not None:
            self.state.phase = "prefill"
            self.state.prompt_tokens = event.started.prompt_tokens
            self.state.cached_tokens = event.started.cached_tokens
        elif event.progress is not None:
            self.state.done_tokens = event.progress.done_tokens


class RequestTable:
    """Every accepted request is in here until it has ended; `idle` is set when none is."""

    def __init__(self, clock: Clock, begins: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._begins = begins
        self._active: dict[str, ActiveRequest] = {}
        self.idle = asyncio.Event()
        self.idle.set()
        self.accepted = 0
        self.failed = 0

    def __len__(self) -> int:
        return len(self._active)

    @contextmanager
    def track(
        self, request_id: str, model: str, route: str, client: str
    ) -> Iterator[ActiveRequest]:
        """The request is listed during the block; raises ServiceError when its id is taken."""
        if request_id in self._active:
            message = f"request id '{request_id}' is already in use"
            raise ServiceError(Kind.INVALID, message, param="request_id")
        request = ActiveRequest(request_id, model, route, client, self._clock.now())
        request.state.request_id, request.state.phase = request_id, "loading"
        self._active[request_id] = request
        self.accepted += 1
        if self.idle.is_set():
            self.idle.clear()
            self._begins()
        try:
            yield request
        except ServiceError:
            self.failed += 1
            raise
        finally:
            del self._active[request_id]
            if not self._active:
                self.idle.set()

    def count(self, finished: m.Finished) -> None:
        if finished.reason not in (*_ENDED_WELL, m.FinishedReason.ABORT):
            self.failed += 1

    def cancel(self, request_id: str) -> bool:
        """Whether there was such a request. A client's several engine requests share a prefix."""
        found = [r for key, r in self._active.items() if _belongs(key, request_id)]
        for request in found:
            request.cancel()
        return bool(found)

    def listed(self) -> list[m.ActiveRequest]:
        now = self._clock.now()
        rows = []
        for request in self._active.values():
            request.state.age_s = now - request.started_at
            rows.append(
                m.ActiveRequest(
                    request_id=request.request_id,
                    model=request.model,
                    route=request.route,
                    client=request.client,
                    state=request.state,
                )
            )
        return rows


def _belongs(key: str, request_id: str) -> bool:
    return key == request_id or key.startswith(request_id + ".")
