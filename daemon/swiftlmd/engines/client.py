"""The daemon's end of one engine's socket: one Run stream, shared by all requests.

Each request owns a queue; the stream's messages are dealt out to them. Promise: every request
that was accepted sees exactly one `finished` event per choice, also when the engine is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import grpclib
from grpclib.client import Channel, Stream
from grpclib.config import Configuration
from grpclib.const import Cardinality
from grpclib.exceptions import StreamTerminatedError

from swiftlm_proto import messages as m
from swiftlmd.faults import Kind, ServiceError, from_fault

T = TypeVar("T")

# A local socket: windows as large as HTTP/2 allows cost nothing and never stall a stream.
_WINDOW = 2**30
_GONE = "the engine is gone"
_LAST_WORD_S = 2.0
MAX_CHOICES = 128  # of one request; the engine ends no more than that of a refused one
_HEARD_S = 3.0  # it is answered before anything is ended
_BROKEN = (StreamTerminatedError, grpclib.GRPCError, OSError)
_RUN = "/swiftlm.v1.Engine/Run"
_RUN_TYPES = (Cardinality.STREAM_STREAM, m.GenerateRequest, m.StepEvents)
_RunStream = Stream[m.GenerateRequest, m.StepEvents]


@dataclass(slots=True)
class _Flight:
    """One request under way and the choices of it that the engine has not finished."""

    request: m.GenerateRequest
    open_choices: set[int]
    events: asyncio.Queue[m.SequenceEvent] = field(default_factory=asyncio.Queue)
    sent: asyncio.Event = field(default_factory=asyncio.Event)  # an abort may follow it

    def fail(self, fault: m.Fault) -> None:
        """Ends the choices that are still open."""
        request_id = self.request.request_id
        for index in sorted(self.open_choices):
            finished = m.Finished(reason=m.FinishedReason.ERROR, fault=fault)
            self.take(m.SequenceEvent(request_id=request_id, index=index, finished=finished))

    def take(self, event: m.SequenceEvent) -> None:
        """Queues `event`, unless its choice has ended already."""
        if event.index in self.open_choices:
            if event.finished is not None:
                self.open_choices.discard(event.index)
            self.events.put_nowait(event)


class EngineClient:
    """Requests to one engine. `pump` must run while it is used; `close` ends everything."""

    def __init__(self, socket_path: Path) -> None:
        config = Configuration(
            http2_connection_window_size=_WINDOW, http2_stream_window_size=_WINDOW
        )
        self._channel = Channel(path=str(socket_path), config=config)
        self._engine = m.EngineStub(self._channel)
        self.busy = asyncio.Event()  # set while a request is under way
        self._flights: dict[str, _Flight] = {}
        self._outbox: asyncio.Queue[_Flight] = asyncio.Queue()
        self._aborts: asyncio.Queue[_Flight] = asyncio.Queue()
        self._end: m.Fault | None = None  # set once nothing more is accepted
        self._closed = asyncio.Event()  # set with it

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    @property
    def closed(self) -> bool:
        return self._end is not None

    async def load(self, request: m.LoadRequest) -> AsyncIterator[m.LoadEvent]:
        """The load's progress; raises ServiceError when the engine breaks off."""
        try:
            async for event in self._engine.load(request):
                yield event
        except _BROKEN as error:
            raise ServiceError(Kind.INTERNAL, f"{_GONE}: {error}") from error

    async def generate(self, request: m.GenerateRequest) -> AsyncGenerator[m.SequenceEvent, None]:
        """The request's events; closing the iterator early aborts the request.

        Raises ServiceError when the engine is gone and has never seen the request.
        """
        flight = self._open(request)
        unfinished = len(flight.open_choices)
        try:
            while unfinished:
                event = await flight.events.get()
                if self._end is not None and not flight.sent.is_set():
                    raise from_fault(self._end)
                unfinished -= event.finished is not None
                yield event
        finally:
            del self._flights[request.request_id]
            if not self._flights:
                self.busy.clear()
            if flight.open_choices and self._end is None:
                self._aborts.put_nowait(flight)

    def abort(self, request_id: str) -> bool:
        """Asks the engine to end a request; its `finished` event still comes."""
        flight = self._flights.get(request_id)
        if flight is not None:
            self._aborts.put_nowait(flight)
        return flight is not None

    async def stats(self, timeout_s: float) -> m.EngineStats:
        return await self._call(self._engine.stats(m.StatsRequest(), timeout=timeout_s))

    async def tokenize(self, request: m.TokenizeRequest) -> m.TokenizeReply:
        return await self._call(self._engine.tokenize(request))

    async def detokenize(self, request: m.DetokenizeRequest) -> m.DetokenizeReply:
        return await self._call(self._engine.detokenize(request))

    async def embed(self, request: m.EmbedRequest) -> m.EmbedReply:
        return await self._call(self._engine.embed(request))

    async def cache(self, request: m.CacheRequest) -> m.CacheReply:
        return await self._call(self._engine.cache(request))

    async def calibrate(
        self, request: m.CalibrationRun
    ) -> AsyncGenerator[m.CalibrationEvent, None]:
        """Closing it early stops the measurement; raises ServiceError when the engine is gone."""
        try:
            async for event in self._engine.calibrate(request):
                yield event
        except _BROKEN as error:
            raise ServiceError(Kind.INTERNAL, f"{_GONE}: {error}") from error

    async def shutdown(self, deadline_s: float) -> None:
        """Asks the engine to end; raises ServiceError if it cannot be asked."""
        message = m.EngineShutdownRequest(deadline_s=deadline_s)
        await self._call(self._engine.shutdown(message, timeout=min(_HEARD_S, deadline_s)))

    async def pump(self) -> None:
        """Carries requests, events and aborts until the stream ends; raises ServiceError then."""
        reason = "it closed its stream"
        try:
            await self._carry()
        except* _BROKEN as group:
            reason = str(group.exceptions[0])
        raise ServiceError(Kind.INTERNAL, f"{_GONE}: {reason}")

    async def _carry(self) -> None:
        async with (
            self._channel.request(_RUN, *_RUN_TYPES) as stream,
            asyncio.TaskGroup() as tasks,
        ):
            await stream.send_request()
            senders = (self._send_requests(stream), self._send_aborts())
            running = [tasks.create_task(sender) for sender in senders]
            async for step in stream:
                self._deal(step)
            for sender in running:
                sender.cancel()
            await stream.cancel()  # the engine ended its half; ours is of no use any more

    def close(self, fault: m.Fault) -> None:
        """Ends every request with `fault`; later ones are refused with it. Safe to call twice."""
        self._end = self._end or fault
        self._closed.set()
        for flight in self._flights.values():
            flight.fail(fault)
        self._channel.close()

    def _open(self, request: m.GenerateRequest) -> _Flight:
        if self._end is not None:
            raise from_fault(self._end)
        if request.request_id in self._flights:
            message = f"request id '{request.request_id}' is already in use"
            raise ServiceError(Kind.INVALID, message, param="request_id")
        if request.n > MAX_CHOICES:
            message = f"n is {request.n:,}; at most {MAX_CHOICES} choices can be asked for at once"
            raise ServiceError(Kind.INVALID, message, param="n")
        flight = _Flight(request, set(range(max(1, request.n))))
        self._flights[request.request_id] = flight
        self.busy.set()
        self._outbox.put_nowait(flight)
        return flight

    def _deal(self, step: m.StepEvents) -> None:
        columns = zip(step.text_request_ids, step.text_indexes, step.texts, strict=True)
        for request_id, index, text in columns:
            if flight := self._flights.get(request_id):
                delta = m.Delta(content=text)
                flight.take(m.SequenceEvent(request_id=request_id, index=index, delta=delta))
        for event in step.events:
            if flight := self._flights.get(event.request_id):
                flight.take(event)

    async def _send_requests(self, stream: _RunStream) -> None:
        while True:
            flight = await self._outbox.get()
            try:
                await stream.send_message(flight.request)
            except ValueError as error:  # not written at all: text that is no Unicode
                message = f"the request cannot be passed on: {error}"
                flight.fail(m.Fault(kind=Kind.INVALID, message=message))
            flight.sent.set()

    async def _send_aborts(self) -> None:
        async with asyncio.TaskGroup() as aborts:  # each is answered between two steps
            while True:
                aborts.create_task(self._send_abort(await self._aborts.get()))

    async def _send_abort(self, flight: _Flight) -> None:
        """Behind the request itself: the engine forgets an abort of what it does not know."""
        await flight.sent.wait()
        await self._engine.abort(m.AbortRequest(request_id=flight.request.request_id))

    async def _call(self, reply: Awaitable[T]) -> T:
        if self._end is not None:
            if asyncio.iscoroutine(reply):
                reply.close()
            raise from_fault(self._end)
        try:
            return await reply
        except TimeoutError as error:
            raise ServiceError(Kind.DEADLINE, "the engine did not answer in time") from error
        except grpclib.GRPCError as error:
            raise ServiceError(Kind.INTERNAL, f"the engine failed: {error.message}") from error
        except _BROKEN as error:
            raise await self._last_word(error) from error

    async def _last_word(self, error: Exception) -> ServiceError:
        """Why the engine is gone: that is known when its process has ended, after its socket."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORD_S):
                await self._closed.wait()
        return from_fault(self._end or m.Fault(kind=Kind.INTERNAL, message=f"{_GONE}: {error}"))
