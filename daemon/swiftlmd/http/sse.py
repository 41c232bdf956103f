"""One writer of server-sent events for every dialect.

Headers go out with the first event, so that a refusal before it is still an HTTP error; a client
that waits longer gets comments instead: the first after 5 s, then whenever there is news, or every
10 s. They carry the progress of a download, of the load and of the prefill. After a fault the
stream ends with the dialect's error event and nothing else. `channel.py` drops a client that stops
reading.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from aiohttp import web

from swiftlmd.faults import Kind, ServiceError
from swiftlmd.http.channel import SSE_HEADERS, Channel
from swiftlmd.http.context import CONTEXT, RECORD
from swiftlmd.http.encoder import Awaited, Encoder
from swiftlmd.http.errors import unsupported
from swiftlmd.http.generation import Generation
from swiftlmd.http.resumable_streams import KEEP_HEADER, follow

log = logging.getLogger(__name__)


async def stream(
    request: web.Request, generation: Generation, encoder: Encoder, *, content_type: str = ""
) -> web.StreamResponse:
    """Answers with the events of `generation`; raises only while no byte has been sent.

    `content_type`: of a stream that is no event stream, and so has no comments."""
    if key := request.headers.get(KEEP_HEADER):
        if content_type:
            raise unsupported(f"{KEEP_HEADER}: only event streams are kept", KEEP_HEADER)
        answers = request.app[CONTEXT].answers
        return await follow(request, answers.begin(key, generation, encoder, request[RECORD]), 0)
    pump = _Pump(generation, encoder)
    if content_type:
        headers = {**SSE_HEADERS, "Content-Type": content_type}
        channel = Channel(request, encoder.idle, headers)
    else:
        channel = Channel(request, pump.comment)
    async with channel.open():
        try:
            await pump.run(channel)
            request[RECORD].sent_whole = True
        except ServiceError as error:
            await channel.fail(error, encoder.error(error))
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as bug:
            log.exception("stream failed request_id=%s", request[RECORD].request_id)
            message = f"the daemon failed: {type(bug).__name__}; see its log"
            failure = ServiceError(Kind.INTERNAL, message)
            await channel.fail(failure, encoder.error(failure))
    return channel.response


class _Pump:
    """Carries the events of a generation to one reader."""

    def __init__(self, generation: Generation, encoder: Encoder) -> None:
        self._generation = generation
        self._encoder = encoder
        self._awaited = Awaited()

    async def run(self, channel: Channel) -> None:
        generation, encoder = self._generation, self._encoder
        last = b""
        async with aclosing(generation.events()) as events:
            async for event in events:
                data = encoder.encode(event)
                if event.finished is not None and generation.num_choices == 1:
                    last = data  # goes out with the end, which follows at once
                elif data:
                    await channel.write(data)
                elif event.progress is not None:
                    self._awaited.note(event.progress)
        await channel.end(last + encoder.end(generation.usage))

    def comment(self) -> bytes:
        return self._awaited.comment() + self._encoder.idle()
