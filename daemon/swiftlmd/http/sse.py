"""One writer of server-sent events for every dialect.

Headers go out with the first event, so that a refusal before it is still an HTTP error; a client
that waits longer gets comments instead (the first after 5 s, then every 10 s) that carry the
progress of the prefill. After a fault the stream ends with the dialect's error event and nothing
else. A client that stops reading is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

from aiohttp import web

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.http.context import CONTEXT, RECORD
from swiftlmd.http.generation import Generation
from swiftlmd.http.resumable_streams import KEEP_HEADER, KeptAnswer

log = logging.getLogger(__name__)

SSE_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class Encoder(Protocol):
    """One dialect's chunks, as bytes that are ready to send."""

    def encode(self, event: m.SequenceEvent) -> bytes:
        """The chunks of one event; empty when the dialect has nothing to say about it."""

    def end(self, usage: m.Usage) -> bytes:
        """What follows the last event of a request that went well."""

    def error(self, error: ServiceError) -> bytes:
        """The only thing that follows a fault."""

    def idle(self) -> bytes:
        """What may be sent besides a comment while nothing happens."""


class _EventStream(web.StreamResponse):
    """aiohttp's switch, off: headers go out in one write with the first event, not before it."""

    _send_headers_immediately = False


async def stream(
    request: web.Request, generation: Generation, encoder: Encoder, options: HttpOptions
) -> web.StreamResponse:
    """Answers with the events of `generation`; raises only while no byte has been sent."""
    if key := request.headers.get(KEEP_HEADER):
        answers = request.app[CONTEXT].answers
        return await follow(request, answers.begin(key, generation, encoder, request[RECORD]), 0)
    channel = _Channel(request, encoder, options)
    ticker = asyncio.create_task(channel.tick())
    try:
        await _pump(channel, generation, encoder)
        request[RECORD].sent_whole = True
    except ServiceError as error:
        await _stop(ticker)
        await channel.fail(error)
    except (ConnectionError, asyncio.CancelledError):
        raise
    except Exception as error:
        log.exception("stream failed request_id=%s", request[RECORD].request_id)
        await _stop(ticker)
        await channel.fail(_internal(error))
    finally:
        await _stop(ticker)
    await channel.response.write_eof()
    return channel.response


async def follow(request: web.Request, answer: KeptAnswer, start: int) -> web.StreamResponse:
    """Sends a kept answer from event `start`; it does not mind whether the client stays."""
    response = _EventStream(headers=SSE_HEADERS)
    comment_s = request.app[CONTEXT].options.first_comment_s
    with answer.read():
        async for piece in answer.events_from(start, comment_s):
            if not response.prepared:
                await response.prepare(request)
            await response.write(piece or _waiting(answer.progress))
        if answer.refusal is not None and not response.prepared:
            raise answer.refusal
    if not response.prepared:
        await response.prepare(request)
    await response.write_eof()
    return response


def _waiting(progress: m.Progress | None) -> bytes:
    """A comment for a silent stream."""
    if progress is None:
        return b": waiting\n\n"
    return f": prefill {progress.done_tokens}/{progress.total_tokens}\n\n".encode()


async def _pump(channel: _Channel, generation: Generation, encoder: Encoder) -> None:
    last = b""
    async with aclosing(generation.events()) as events:
        async for event in events:
            data = encoder.encode(event)
            if event.finished is not None and generation.num_choices == 1:
                last = data  # goes out with the end, which follows at once
            elif data:
                await channel.write(data)
            elif event.progress is not None:
                channel.progress = event.progress
    await channel.end(last + encoder.end(generation.usage))


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("keep-alive of a stream ended: %s", error)


def _internal(error: Exception) -> ServiceError:
    return ServiceError(Kind.INTERNAL, f"the daemon failed: {type(error).__name__}; see its log")


class _Channel:
    """The response of one stream, opened by its first write."""

    def __init__(self, request: web.Request, encoder: Encoder, options: HttpOptions) -> None:
        self.response = _EventStream(headers=SSE_HEADERS)
        self.progress: m.Progress | None = None
        self._request = request
        self._encoder = encoder
        self._options = options
        self._opening = asyncio.Lock()  # the pump and the ticker may both be first
        self._writes = 0
        self._writing = False

    async def write(self, data: bytes) -> None:
        await self._send(self.response.write, data)

    async def end(self, data: bytes) -> None:
        """The last write, and the end of the body with it."""
        await self._send(self.response.write_eof, data)

    async def _send(self, send: Callable[[bytes], Awaitable[None]], data: bytes) -> None:
        if not self.response.prepared:
            await self._open()
        self._writes += 1
        self._writing = True
        await send(data)
        self._writing = False

    async def fail(self, error: ServiceError) -> None:
        """Ends the stream with `error`, or raises it when HTTP can still say it."""
        if not self.response.prepared:
            raise error
        record = self._request[RECORD]
        record.outcome = error.code
        await self.write(self._encoder.error(error))

    async def tick(self) -> None:
        """Comments on a silent stream, and drops a client that no longer reads."""
        options = self._options
        await asyncio.sleep(min(options.first_comment_s, options.comment_s))
        last, stalled_s = 0, 0.0
        while True:
            silent = self._writes == last
            if silent and self._writing:
                stalled_s += options.comment_s
                if stalled_s >= options.stall_s:
                    self._drop()
            elif silent:
                await self._write_comment()
            else:
                stalled_s = 0.0
            last = self._writes
            await asyncio.sleep(options.comment_s)

    async def _open(self) -> None:
        async with self._opening:
            if not self.response.prepared:
                await self.response.prepare(self._request)

    async def _write_comment(self) -> None:
        try:
            async with asyncio.timeout(self._options.stall_s):
                await self.write(self._comment())
        except TimeoutError:
            self._drop()

    def _comment(self) -> bytes:
        return _waiting(self.progress) + self._encoder.idle()

    def _drop(self) -> None:
        log.warning("client stopped reading request_id=%s", self._request[RECORD].request_id)
        if self._request.transport is not None:
            self._request.transport.abort()
