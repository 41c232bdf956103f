"""Answers that outlive their connection: a phone that locked its screen goes on where it was.

A client that sends `X-Keep-Answer: KEY` (a name of its own choice that nobody can guess) gets its
stream as ever; meanwhile the events are kept. When the connection breaks, the generation goes on
and `GET /v1/answers/KEY?from=N` sends the stream from event N. Bounded: an answer without a reader
is ended after a while, an ended one is forgotten after a while, and only so many are kept.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING

from aiohttp import web

from swiftlm_proto import messages as m
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.http.context import CONTEXT, RequestLog
from swiftlmd.http.errors import invalid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from swiftlmd.http.generation import Generation
    from swiftlmd.http.sse import Encoder

log = logging.getLogger(__name__)

KEEP_HEADER = "X-Keep-Answer"
_KEY = re.compile(r"[A-Za-z0-9_-]{16,64}")
_END = b"\n\n"
_MAX_ANSWERS = 32
_MAX_BYTES = 4 << 20  # of one answer; what is longer is not for a chat
_UNREAD_S = 120.0
_KEPT_S = 300.0
_TICK_S = 1.0


class KeptAnswer:
    """The events of one stream, and whoever reads them now."""

    def __init__(self) -> None:
        self.progress: m.Progress | None = None
        self.refusal: ServiceError | None = None  # of a request that never began
        self.readers = 0
        self.since = time.monotonic()  # it has had no reader, or has been over
        self.task: asyncio.Task[None] | None = None
        self._events: list[bytes] = []
        self._num_bytes = 0
        self._ended = False
        self._news = asyncio.Event()

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def empty(self) -> bool:
        return not self._events

    async def write(self, data: bytes) -> None:
        if self._num_bytes + len(data) > _MAX_BYTES:
            raise ServiceError(Kind.INVALID, f"a kept answer may have {_MAX_BYTES} bytes")
        self.add(data)

    def add(self, data: bytes) -> None:
        """Server-sent events, whole ones; nobody counts the comments between them."""
        self._events += [part + _END for part in data.split(_END) if part]
        self._num_bytes += len(data)
        self._tell()

    def end(self) -> None:
        self._ended, self.since = True, time.monotonic()
        self._tell()

    @contextmanager
    def read(self) -> Iterator[None]:
        """The block is a reader: the answer is wanted."""
        self.readers += 1
        try:
            yield
        finally:
            self.readers -= 1
            self.since = time.monotonic()

    async def events_from(self, start: int, comment_s: float) -> AsyncIterator[bytes]:
        """What is there and what comes, to the end; empty where nothing came for `comment_s`."""
        while True:
            news = self._news
            if start < len(self._events):
                batch = self._events[start:]
                start += len(batch)
                yield b"".join(batch)
            elif self._ended:
                return
            else:
                try:
                    async with asyncio.timeout(comment_s):
                        await news.wait()
                except TimeoutError:
                    yield b""

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class KeptAnswers:
    """By key. `close` ends them all."""

    def __init__(self) -> None:
        self._answers: dict[str, KeptAnswer] = {}
        self._ticker: asyncio.Task[None] | None = None

    def begin(
        self, key: str, generation: Generation, encoder: Encoder, record: RequestLog
    ) -> KeptAnswer:
        """Starts the generation, owned by nobody's connection. Raises ServiceError."""
        if not _KEY.fullmatch(key):
            raise invalid(f"{KEEP_HEADER}: 16 to 64 letters, digits, - or _", KEEP_HEADER)
        if key in self._answers:
            raise ServiceError(Kind.INVALID, f"{KEEP_HEADER}: this key is in use", status=409)
        self._make_room()
        answer = self._answers[key] = KeptAnswer()
        answer.task = asyncio.create_task(_fill(answer, generation, encoder, record))
        self._ticker = self._ticker or asyncio.create_task(self._tick())
        return answer

    def find(self, key: str) -> KeptAnswer:
        answer = self._answers.get(key)
        if answer is None:
            message = "no answer of this key is kept (any more)"
            raise ServiceError(Kind.INVALID, message, code="not_found", status=404)
        return answer

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

    def _make_room(self) -> None:
        if len(self._answers) < _MAX_ANSWERS:
            return
        over = [key for key, a in self._answers.items() if a.ended and not a.readers]
        if not over:
            message = f"{_MAX_ANSWERS} kept answers are under way; try again when one has ended"
            raise ServiceError(Kind.BUSY, message, retry_after_s=5)
        del self._answers[min(over, key=lambda key: self._answers[key].since)]

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            for key, answer in list(self._answers.items()):
                allowed_s = _KEPT_S if answer.ended else _UNREAD_S
                if not answer.readers and now > answer.since + allowed_s:
                    self.remove(key)


async def _fill(
    answer: KeptAnswer, generation: Generation, encoder: Encoder, record: RequestLog
) -> None:
    """Root of a kept answer's task: from the request to its one last event."""
    try:
        async with aclosing(generation.events()) as events:
            async for event in events:
                answer.progress = event.progress or answer.progress
                await answer.write(encoder.encode(event))
        await answer.write(encoder.end(generation.usage))
        record.sent_whole = True
    except ServiceError as error:
        _fail(answer, encoder, record, error)
    except Exception as error:
        log.exception("kept answer failed request_id=%s", record.request_id)
        message = f"the daemon failed: {type(error).__name__}; see its log"
        _fail(answer, encoder, record, ServiceError(Kind.INTERNAL, message))
    except asyncio.CancelledError:  # who still reads is told
        _fail(answer, encoder, record, ServiceError(Kind.ABORTED, "the answer was stopped"))
        raise
    finally:
        answer.end()


def _fail(answer: KeptAnswer, encoder: Encoder, record: RequestLog, error: ServiceError) -> None:
    record.outcome = error.code
    if answer.empty:
        answer.refusal = error
    else:
        answer.add(encoder.error(error))  # also where the answer has become too long


async def resume(request: web.Request) -> web.StreamResponse:
    """`GET /v1/answers/KEY?from=N`."""
    from swiftlmd.http.sse import follow

    start = request.query.get("from", "0")
    if not start.isdecimal():
        raise invalid("from: a number of events", "from")
    answer = request.app[CONTEXT].answers.find(request.match_info["key"])
    return await follow(request, answer, int(start[:12]))


async def forget(request: web.Request) -> web.Response:
    """`DELETE /v1/answers/KEY`: stops it, if it still runs."""
    request.app[CONTEXT].answers.remove(request.match_info["key"])
    return web.json_response({"deleted": True})
