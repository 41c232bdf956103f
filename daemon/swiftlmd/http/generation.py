"""One client request in flight: its engine requests, the events they send, and the account.

A dialect hands over engine requests and reads events whose indexes count the choices of the
whole client request. A fault is raised as `ServiceError`; running dry before every choice has
finished is one too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from aiohttp import web

from swiftlm_proto import messages as m
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.http import access_log
from swiftlmd.http.context import CONTEXT, RECORD, RequestLog
from swiftlmd.http.errors import fault_of
from swiftlmd.http.tally import OK, Tally

# Engine requests of one client request (a list of prompts) that run at once.
MAX_PARALLEL_PROMPTS = 8


LEFT = "client_left"


class Generation:
    """Read `events` once, with `aclosing`; `usage` and `timings` are whole afterwards."""

    def __init__(self, request: web.Request, engine_requests: Sequence[m.GenerateRequest]) -> None:
        parts = request.app[CONTEXT]
        self.record: RequestLog = request[RECORD]
        self.usage = m.Usage()
        self.timings: m.Timings | None = None
        self.hides_thoughts = False
        self.warnings: list[str] = []  # what was asked for and cannot be
        self.client = client_of(request)
        self.left_as = LEFT  # the outcome when its events are not read to the end
        self._requests = engine_requests
        self._backend = parts.backend
        self._gate = parts.gate
        self._metrics = parts.metrics
        self._client_name = client_name(request)
        self._tally = Tally()
        self._started_at = time.monotonic()
        self._counted_prompts: set[str] = set()
        for number, engine_request in enumerate(engine_requests):
            suffix = f".{number}" if len(engine_requests) > 1 else ""
            engine_request.request_id = self.record.request_id + suffix
            engine_request.deadline_s = parts.options.request_deadline_s
            engine_request.client = self.client

    @property
    def num_choices(self) -> int:
        return sum(max(1, r.n) for r in self._requests)

    async def events(self) -> AsyncGenerator[m.SequenceEvent, None]:
        """Every token is booked when this ends, however it ends, and so is the outcome."""
        outcome = self.left_as
        try:
            with self._gate.enter(self.client), self._metrics.in_flight():
                async with aclosing(self._checked()) as events:
                    async for event in events:
                        yield event
            outcome = OK
        except ServiceError as error:
            outcome = error.code
            raise
        except Exception:
            outcome = "internal_error"
            raise
        except BaseException:
            outcome = self.left_as
            raise
        finally:
            self._book(outcome)

    async def _checked(self) -> AsyncGenerator[m.SequenceEvent, None]:
        """The engine's events; raises for a fault among them and for choices without an end."""
        unfinished = self.num_choices
        async with aclosing(self._source()) as source:
            async for event in source:
                self._tally.note(event)
                if event.finished is not None:
                    self._account(event.request_id, event.finished)
                    unfinished -= 1
                elif event.delta is not None:
                    if self.hides_thoughts:
                        event.delta.reasoning = ""
                    if not self.record.first_token_s:
                        self.record.first_token_s = time.monotonic() - self._started_at
                elif event.started is not None:
                    self.record.cache_note = event.started.cache_note
                    self._warn(event.started.warnings)
                yield event
        if unfinished:
            raise ServiceError(Kind.INTERNAL, "the engine stopped before the answer was whole")

    def _warn(self, warnings: Sequence[str]) -> None:
        """Each once, however many choices say it."""
        self.warnings += [text for text in warnings if text not in self.warnings]

    def _book(self, outcome: str) -> None:
        record = self.record
        record.usage = self._tally.usage()
        if not record.outcome and outcome != OK:
            record.outcome = outcome
        self._metrics.book(record, outcome)
        if record.is_logged:  # a kept answer that went on without its connection
            access_log.ended_alone(record, time.monotonic() - self._started_at)

    def _source(self) -> AsyncGenerator[m.SequenceEvent, None]:
        if len(self._requests) == 1:
            return self._run(self._requests[0])
        return self._run_many()

    def _run(self, engine_request: m.GenerateRequest) -> AsyncGenerator[m.SequenceEvent, None]:
        return self._backend.generate(
            self.record.model, engine_request, route=self.record.route, client=self._client_name
        )

    async def _run_many(self) -> AsyncGenerator[m.SequenceEvent, None]:
        """Runs every engine request, a few at a time; the events of all in order of arrival."""
        queue: asyncio.Queue[m.SequenceEvent | None] = asyncio.Queue()
        owner = asyncio.create_task(self._run_all(queue))
        owner.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                yield event
            _raise_first(owner)
        finally:
            owner.cancel()
            await asyncio.wait({owner})

    async def _run_all(self, queue: asyncio.Queue[m.SequenceEvent | None]) -> None:
        seats = asyncio.Semaphore(MAX_PARALLEL_PROMPTS)

        async def run(number: int, engine_request: m.GenerateRequest) -> None:
            first_index = number * max(1, engine_request.n)
            async with seats, aclosing(self._run(engine_request)) as events:
                async for event in events:
                    event.index += first_index
                    queue.put_nowait(event)

        async with asyncio.TaskGroup() as group:
            for number, engine_request in enumerate(self._requests):
                group.create_task(run(number, engine_request))

    def _account(self, request_id: str, finished: m.Finished) -> None:
        fault = fault_of(finished)
        if fault is not None:
            raise fault
        # `is None`: the truth of a message is worked out field by field.
        if finished.timings is not None:
            self.timings = self.record.timings = finished.timings
        usage = self.usage
        part = m.Usage() if finished.usage is None else finished.usage
        usage.completion_tokens += part.completion_tokens
        usage.reasoning_tokens += part.reasoning_tokens
        if request_id not in self._counted_prompts:  # every choice reports the same prompt
            self._counted_prompts.add(request_id)
            usage.prompt_tokens += part.prompt_tokens
            usage.cached_tokens += part.cached_tokens


def _raise_first(owner: asyncio.Task[None]) -> None:
    """The failure that ended a group of engine requests, as itself rather than as a group."""
    error = owner.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is not None:
        raise error


def client_of(request: web.Request) -> str:
    """Who shares places with whom: the key that was sent, or else the peer and its program."""
    key = request[RECORD].key
    return f"key:{key}" if key else f"{request.remote or ''} {_agent(request)}"


def client_name(request: web.Request) -> str:
    """For the request list and the access log: the key's name, and the program."""
    key, agent = request[RECORD].key, _agent(request)
    return f"{key}: {agent}" if key and agent else key or agent


def _agent(request: web.BaseRequest) -> str:
    """The first word of the user agent."""
    words = request.headers.get("User-Agent", "").split(maxsplit=1)
    return "".join(c for c in words[0][:64] if c.isprintable()) if words else ""


async def begin(request: web.Request, model: str | None, stream: bool) -> RequestLog:
    """Names the request for the log; raises when no model has that name."""
    record = request[RECORD]
    record.stream = stream
    record.model = await request.app[CONTEXT].backend.named(model or "")
    return record
