"""The one way to a client that reads a stream: opened by the first write, in pieces, with comments
while nothing happens, and ended for a reader that takes nothing any more.

Every stream goes through it: plain and kept answers, and the operations of `/admin`. So one stalled
reader holds at most a piece and the socket's buffers, and not for longer than `stall_s`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from aiohttp import HttpVersion11, web

from swiftlmd.config.http import HttpOptions
from swiftlmd.faults import ServiceError
from swiftlmd.http.context import CONTEXT, RECORD

log = logging.getLogger(__name__)

SSE_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
PIECE_BYTES = 1 << 16
_LOOKS_PER_STALL = 4  # how often a blocked write is looked at before its reader is given up


class _EventStream(web.StreamResponse):
    """aiohttp's switch, off: headers go out in one write with the first event, not before it."""

    _send_headers_immediately = False


class Channel:
    """The response of one stream. `comment` makes what is sent while nothing happens, if that may
    be."""

    def __init__(
        self,
        request: web.Request,
        comment: Callable[[], bytes] | None,
        headers: Mapping[str, str] = SSE_HEADERS,
    ) -> None:
        self.response = _EventStream(headers=headers)
        if request.version < HttpVersion11:  # no chunks: the connection's end is the body's
            self.response.force_close()
        self._request = request
        self._comment = comment
        self._options: HttpOptions = request.app[CONTEXT].options
        self._opening = asyncio.Lock()  # the pump and the ticker may both be first
        self._ticker: asyncio.Task[None] | None = None
        self._writers = 0  # the pump, and perhaps the ticker
        self._written_at = time.monotonic()  # when the last write began or ended

    async def write(self, data: bytes) -> None:
        with self._busy():
            for start in range(0, len(data), PIECE_BYTES):
                await self._send(self.response.write, data[start : start + PIECE_BYTES])

    async def end(self, data: bytes = b"") -> None:
        """The last write, and the end of the body with it."""
        last = max(0, len(data) - PIECE_BYTES)
        with self._busy():
            await self.write(data[:last])
            await self._send(self.response.write_eof, data[last:])

    async def fail(self, error: ServiceError, event: bytes) -> None:
        """Ends the stream with `event`, or raises `error` when HTTP can still say it."""
        await self._stop_ticker()  # its first comment may be on its way: then HTTP cannot say it
        if not self.response.prepared:
            raise error
        self._request[RECORD].outcome = error.code
        await self.end(event)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """The block may write; comments go out and a stalled reader is dropped meanwhile."""
        self._ticker = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            await self._stop_ticker()

    async def _stop_ticker(self) -> None:
        ticker = self._ticker
        if ticker is None:
            return
        ticker.cancel()
        await asyncio.wait({ticker})
        if not ticker.cancelled() and (error := ticker.exception()) is not None:
            log.debug("keep-alive of a stream ended: %s", error)

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """No comment goes out during the block: it could fall into the middle of an event."""
        self._writers += 1
        try:
            yield
        finally:
            self._writers -= 1
            self._written_at = time.monotonic()

    async def _send(self, send: Callable[[bytes], Awaitable[None]], data: bytes) -> None:
        if not self.response.prepared:
            await self._prepare()
        self._written_at = time.monotonic()
        await send(data)

    async def _prepare(self) -> None:
        async with self._opening:
            if not self.response.prepared:
                await self.response.prepare(self._request)

    async def _tick(self) -> None:
        options = self._options
        look_s = options.stall_s / _LOOKS_PER_STALL
        said, silence_s = b"", min(options.first_comment_s, options.comment_s)
        while True:
            silent_s = time.monotonic() - self._written_at
            left_s = silence_s - silent_s if self._comment is not None else look_s
            if self._writers:
                await self._watch_the_write()
            elif self._comment is not None and left_s <= 0:
                comment = self._comment()
                if comment != said or silent_s >= options.comment_s:
                    await self._write_comment(comment)
                    said, silence_s = comment, 0.0
                silence_s = min(silence_s + options.progress_s, options.comment_s)
            await asyncio.sleep(min(max(0.001, left_s), look_s))

    async def _watch_the_write(self) -> None:
        """Returns when the write under way is done; drops a reader that takes nothing of it."""
        began = self._written_at
        stall = _Stall(self._request, self._options.stall_s)
        while self._writers and self._written_at == began:
            await asyncio.sleep(stall.look_s)
            if stall.has_lasted():
                return

    async def _write_comment(self, comment: bytes) -> None:
        try:
            async with asyncio.timeout(self._options.stall_s):
                await self.write(comment)
        except TimeoutError:
            _drop(self._request)


class _Stall:
    """Watches what a reader takes of a write that is blocked."""

    def __init__(self, request: web.Request, limit_s: float) -> None:
        self.look_s = limit_s / _LOOKS_PER_STALL
        self._request = request
        self._limit_s = limit_s
        self._left = self._unsent()
        self._taken_at = time.monotonic()

    def has_lasted(self) -> bool:
        """Whether nothing was taken for too long; the reader has been dropped then."""
        unsent, now = self._unsent(), time.monotonic()
        if unsent != self._left:  # less: it reads; more: what came before was taken
            self._left, self._taken_at = unsent, now
        if now - self._taken_at < self._limit_s:
            return False
        _drop(self._request)
        return True

    def _unsent(self) -> int:
        transport = self._request.transport
        return transport.get_write_buffer_size() if transport is not None else 0


async def deliver(request: web.Request, response: web.StreamResponse) -> None:
    """Sends a whole answer to its last byte; a reader that takes nothing of it is dropped."""
    if response.prepared:
        return
    body = response.body if isinstance(response, web.Response) else None
    is_small = body is None or (isinstance(body, bytes) and len(body) <= PIECE_BYTES)
    watch = None if is_small else asyncio.create_task(_drop_when_stalled(request))
    try:
        await response.prepare(request)
        await response.write_eof()
    finally:
        if watch is not None:
            watch.cancel()


async def _drop_when_stalled(request: web.Request) -> None:
    stall = _Stall(request, request.app[CONTEXT].options.stall_s)
    while True:
        await asyncio.sleep(stall.look_s)
        if stall.has_lasted():
            return


def _drop(request: web.Request) -> None:
    log.warning("client stopped reading request_id=%s", request[RECORD].request_id)
    if request.transport is not None:
        request.transport.abort()
