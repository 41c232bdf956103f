"""Answers that outlive their connection: a phone that locked its screen goes on where it was.

A client that sends `X-Keep-Answer: KEY` (a name of its own choice that nobody can guess) gets its
stream as ever; meanwhile the events are kept. When the connection breaks, the generation goes on
and `GET /v1/answers/KEY?from=N` sends the stream from event N. Bounded: an answer without a reader
is ended after a while, an ended one is forgotten after a while, only so many are kept, and of a
very long one only the end: it goes on being answered, and a reader that asks for less gets 410.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from swiftlmd.faults import Kind, ServiceError
from swiftlmd.http.channel import Channel
from swiftlmd.http.context import CONTEXT, RECORD, RequestLog
from swiftlmd.http.encoder import Awaited, Encoder
from swiftlmd.http.errors import invalid
from swiftlmd.http.event_log import EventLog, Forgotten

if TYPE_CHECKING:
    from swiftlmd.http.generation import Generation

log = logging.getLogger(__name__)

KEEP_HEADER = "X-Keep-Answer"
_KEY = re.compile(r"[A-Za-z0-9_-]{16,64}")
_MAX_STOPPED = 256
_MAX_ANSWERS = 32
_MAX_BYTES = 4 << 20  # of one answer, as it is kept
_UNREAD_S = 120.0
_KEPT_S = 300.0
_TICK_S = 1.0


@dataclass(slots=True, eq=False)
class Reader:
    """One connection that follows an answer; `at` is the first event it has not taken."""

    at: int


class KeptAnswer:
    """The events of one stream, and its readers now."""

    def __init__(self, encoder: Encoder, client: str) -> None:
        self.client = client
        self.encoder = encoder
        self.awaited = Awaited()
        self.refusal: ServiceError | None = None  # of a request that never began
        self.ended = False
        self.since = time.monotonic()  # it has had no reader, or has been over
        self.task: asyncio.Task[None] | None = None
        self._events = EventLog(_MAX_BYTES)
        self._readers: set[Reader] = set()
        self._news = asyncio.Event()
        self._taken = asyncio.Event()  # a reader has moved on or left

    @property
    def empty(self) -> bool:
        return not self._events.num_events

    @property
    def is_read(self) -> bool:
        return bool(self._readers)

    @property
    def first_event(self) -> int:
        return self._events.first

    @property
    def num_bytes(self) -> int:
        return self._events.num_bytes

    async def write(self, data: bytes) -> None:
        """Takes events in; waits for the first of the readers before it forgets what all lack."""
        if not data:
            return
        self.add(data)
        while self._events.is_over:
            while self._readers and max(r.at for r in self._readers) < self._events.oldest_end:
                self._taken.clear()
                await self._taken.wait()
            self._events.forget_oldest()

    def add(self, data: bytes) -> None:
        self._events.append(data)
        self._tell()

    def end(self) -> None:
        self.ended, self.since = True, time.monotonic()
        self._tell()

    def comment(self) -> bytes:
        """No event of a dialect's own, such as a ping: a client that comes back counts events."""
        return self.awaited.comment()

    @contextmanager
    def read(self, start: int) -> Iterator[Reader]:
        """The block is a reader: the answer is wanted."""
        reader = Reader(start)
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)
            self._taken.set()
            if not self.ended:
                self.since = time.monotonic()

    async def events_for(self, reader: Reader) -> AsyncIterator[bytes]:
        """What is there and what comes, a stretch at a time, to the end. Raises `Forgotten`."""
        while True:
            news = self._news
            data, following = self._events.read(reader.at)
            if data:
                yield data
                reader.at = following
                self._taken.set()
            elif self.ended:
                return
            else:
                await news.wait()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class KeptAnswers:
    """By key. `close` ends them all."""

    def __init__(self) -> None:
        self._answers: dict[str, KeptAnswer] = {}
        self._stopped: dict[str, float] = {}  # keys whose stop came before their request, and when
        self._ticker: asyncio.Task[None] | None = None

    def begin(
        self, key: str, generation: Generation, encoder: Encoder, record: RequestLog
    ) -> KeptAnswer:
        """Starts the generation, owned by nobody's connection. Raises ServiceError."""
        if not _KEY.fullmatch(key):
            raise invalid(f"{KEEP_HEADER}: 16 to 64 letters, digits, - or _", KEEP_HEADER)
        before = self._answers.get(key)
        if before is not None and before.refusal is None:  # a refused request may come again
            raise ServiceError(Kind.INVALID, f"{KEEP_HEADER}: this key is in use", status=409)
        if time.monotonic() < self._stopped.pop(key, -math.inf) + _UNREAD_S:
            raise ServiceError(Kind.ABORTED, "the answer was stopped before its request came")
        self._make_room(generation.client)
        answer = self._answers[key] = KeptAnswer(encoder, generation.client)
        answer.task = asyncio.create_task(_fill(answer, generation, record))
        if self._ticker is None or self._ticker.done():
            self._ticker = asyncio.create_task(self._tick())
        return answer

    def find(self, key: str) -> KeptAnswer:
        answer = self._answers.get(key)
        if answer is None:
            message = "no stored stream for this key; it may have expired"
            raise ServiceError(Kind.INVALID, message, code="not_found", status=404)
        return answer

    def stop(self, key: str) -> None:
        """As `remove`; an answer whose request has yet to come is stopped as well."""
        if key not in self._answers and _KEY.fullmatch(key):
            while len(self._stopped) >= _MAX_STOPPED:
                del self._stopped[next(iter(self._stopped))]
            self._stopped[key] = time.monotonic()
        self.remove(key)

    def remove(self, key: str) -> None:
        """Ends it if it still runs, and forgets it."""
        answer = self.find(key)
        del self._answers[key]
        if answer.task is not None:
            answer.task.cancel()

    async def close(self) -> None:
        tasks = [answer.task for answer in self._answers.values() if answer.task is not None]
        for task in (*tasks, *([self._ticker] if self._ticker else ())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _make_room(self, client: str) -> None:
        """An ended answer goes for the new one: of the client that has most of them, the oldest."""
        held = [answer.client for answer in self._answers.values()]
        if len(held) < _MAX_ANSWERS:
            return
        over = [key for key, answer in self._answers.items() if answer.ended]
        if over:
            found = self._answers
            del found[min(over, key=lambda k: (-held.count(found[k].client), found[k].since))]
        elif held.count(client) >= _MAX_ANSWERS // len({*held, client}):
            message = f"{len(held)} kept answers are under way; try again when one has ended"
            raise ServiceError(Kind.BUSY, message, retry_after_s=5)

    async def _tick(self) -> None:
        while self._answers:  # an idle daemon is not woken
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            for key, answer in list(self._answers.items()):
                if answer.ended:  # a reader of it goes on by itself
                    forgotten = now > answer.since + _KEPT_S
                else:
                    forgotten = not answer.is_read and now > answer.since + _UNREAD_S
                if forgotten:
                    self.remove(key)


async def _fill(answer: KeptAnswer, generation: Generation, record: RequestLog) -> None:
    """Root of a kept answer's task: from the request to its one last event."""
    encoder = answer.encoder
    try:
        async with aclosing(generation.events()) as events:
            async for event in events:
                if event.progress is not None:
                    answer.awaited.note(event.progress)
                await answer.write(encoder.encode(event))
        await answer.write(encoder.end(generation.usage))
    except ServiceError as error:
        _fail(answer, record, error)
    except Exception as error:
        log.exception("kept answer failed request_id=%s", record.request_id)
        message = f"the daemon failed: {type(error).__name__}; see its log"
        _fail(answer, record, ServiceError(Kind.INTERNAL, message))
    except asyncio.CancelledError:  # who still reads is told
        _fail(answer, record, ServiceError(Kind.ABORTED, "the answer was stopped"))
        raise
    finally:
        answer.end()


def _fail(answer: KeptAnswer, record: RequestLog, error: ServiceError) -> None:
    record.outcome = error.code
    if answer.empty:
        answer.refusal = error
    else:
        answer.add(answer.encoder.error(error))


async def follow(request: web.Request, answer: KeptAnswer, start: int) -> web.StreamResponse:
    """Sends a kept answer from event `start`; it does not mind whether the client stays."""
    channel = Channel(request, answer.comment)
    with answer.read(start) as reader:
        async with channel.open():
            try:
                async for data in answer.events_for(reader):
                    await channel.write(data)
            except Forgotten:
                gone = _gone(answer)
                await channel.fail(gone, answer.encoder.error(gone))
                return channel.response
            if answer.refusal is not None:
                await channel.fail(answer.refusal, answer.encoder.error(answer.refusal))
            else:
                await channel.end()
                request[RECORD].sent_whole = True
    return channel.response


def _gone(answer: KeptAnswer) -> ServiceError:
    message = f"the answer has grown too long to be kept whole: ask from event {answer.first_event}"
    return ServiceError(Kind.INVALID, message, param="from", code="answer_gone", status=410)


async def resume(request: web.Request) -> web.StreamResponse:
    """`GET /v1/answers/KEY?from=N`."""
    start = request.query.get("from", "0")
    if not start.isdecimal():
        raise invalid("from: a number of events", "from")
    answer = request.app[CONTEXT].answers.find(request.match_info["key"])
    return await follow(request, answer, int(start[:12]))


async def forget(request: web.Request) -> web.Response:
    """`DELETE /v1/answers/KEY`: stops it, if it still runs."""
    request.app[CONTEXT].answers.stop(request.match_info["key"])
    return web.json_response({"deleted": True})
