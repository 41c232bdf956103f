"""Bounds on what a client may ask the daemon to hold: body bytes, body time, requests in flight."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from aiohttp import web

from swiftlm_engine.brain.shares import is_refused
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.http.context import CONTEXT, RECORD
from swiftlmd.http.unpacking import TooLarge, is_unreadable, unpack

MIB = 1 << 20
LEAST_BYTES_PER_S = 1 << 15  # a slow network's; a body that comes slower is given up
MAX_DISCARDED, DISCARD_S = 256 * MIB, 60.0  # of a body that was refused


class Gate:
    """Counts the requests in flight, by client; one more than its share is told to come back."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held: Counter[str] = Counter()

    @property
    def inside(self) -> int:
        return self._held.total()

    @contextmanager
    def enter(self, client: str = "") -> Iterator[None]:
        if is_refused(self.limit, self._held, client):
            raise ServiceError(
                Kind.BUSY,
                f"{self.inside} requests are in flight, the most that http.max_in_flight allows, "
                f"and {self._held[client]} of them are yours; try again when one has ended",
                retry_after_s=2,
            )
        self._held[client] += 1
        try:
            yield
        finally:
            self._held[client] -= 1
            if not self._held[client]:
                del self._held[client]


class Exchanges:
    """The requests that are being read, worked on or answered; `idle` is set when none is.

    A drain waits for them: an answer is not given while its client still reads it.
    """

    def __init__(self) -> None:
        self.idle = asyncio.Event()
        self.idle.set()
        self._num = 0

    @contextmanager
    def under_way(self) -> Iterator[None]:
        self._num += 1
        self.idle.clear()
        try:
            yield
        finally:
            self._num -= 1
            if not self._num:
                self.idle.set()


class BodyBudget:
    """Bytes of all bodies that are being read or worked on; clients share them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        return self._held.total()

    def take(self, client: str, num_bytes: int) -> None:
        """Raises ServiceError when there is no room for them; `give_back` what was taken."""
        if is_refused(self.limit, self._held, client, num_bytes):
            raise ServiceError(
                Kind.BUSY,
                f"{self.held // MIB} MiB of request bodies are being worked on, the most there is "
                "room for; try again in a moment",
                code="bodies_full",
                retry_after_s=2,
            )
        self._held[client] += num_bytes

    def give_back(self, client: str, num_bytes: int) -> None:
        self._held[client] -= num_bytes
        if not self._held[client]:
            del self._held[client]


async def read_body(request: web.Request, limit: int = 0) -> bytes:
    """The whole body; refuses one that is too large or that dribbles in.

    It counts in the budget of all bodies until the request has ended. `limit`: of a route that
    takes little, in bytes."""
    options = request.app[CONTEXT].options
    limit = limit or options.max_body_bytes
    _refuse_coded(request)
    if (request.content_length or 0) > limit:
        raise _too_large(limit)
    try:
        raw = await _received(request, limit)
        unpacked = await _unpacked(raw, request, limit)
        _hold(request, len(unpacked) - len(raw))
        return unpacked
    except TooLarge:
        raise _too_large(limit) from None
    except (web.RequestPayloadError, zlib.error):
        raise ServiceError(
            Kind.INVALID,
            "the body is not encoded as its headers say",
            code="invalid_encoding",
        ) from None
    except TimeoutError:
        raise ServiceError(
            Kind.INVALID,
            f"nothing of the body came for {options.body_timeout_s:g} s, or too little",
            code="body_timeout",
            status=408,
        ) from None


def _refuse_coded(request: web.Request) -> None:
    """The parser takes any list of codings that ends in chunked, and undoes only that one."""
    coding = ", ".join(request.headers.getall("Transfer-Encoding", ())).strip().lower()
    if coding not in ("", "chunked", "identity"):
        raise ServiceError(
            Kind.INVALID,
            f"the transfer coding {coding[:64]!r} is not read; send chunked alone, and name what "
            "packs the body in Content-Encoding",
            code="unsupported_encoding",
        )


async def _received(request: web.Request, limit: int) -> bytes:
    """Raises TimeoutError for a body that stops, or that comes slower than the least rate."""
    timeout_s = request.app[CONTEXT].options.body_timeout_s
    loop = asyncio.get_running_loop()
    raw, deadline = bytearray(), loop.time() + timeout_s
    async with asyncio.timeout_at(deadline) as patience:
        while piece := await request.content.readany():
            raw += piece
            if len(raw) > limit:
                raise TooLarge
            _hold(request, len(piece))
            patience.reschedule(deadline + len(raw) / LEAST_BYTES_PER_S)
    return bytes(raw)


def _hold(request: web.Request, num_bytes: int) -> None:
    record = request[RECORD]
    if num_bytes > 0:
        request.app[CONTEXT].body_budget.take(record.peer, num_bytes)
        record.body_bytes += num_bytes


async def discard_body(request: web.Request) -> None:
    """Reads what a refused client still sends: closed on, it would not see why."""
    left = min(request.content_length or MAX_DISCARDED, MAX_DISCARDED)
    with contextlib.suppress(TimeoutError, web.RequestPayloadError, ConnectionError):
        async with asyncio.timeout(DISCARD_S):
            while left > 0 and (piece := await request.content.readany()):
                left -= len(piece)


async def _unpacked(raw: bytes, request: web.Request, limit: int) -> bytes:
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if not encoding:
        return raw
    if is_unreadable(encoding):
        raise ServiceError(
            Kind.INVALID,
            f"bodies packed by {encoding} are not read; send gzip, deflate or none",
            code="unsupported_encoding",
            status=415,
        )
    return await asyncio.to_thread(unpack, raw, encoding, limit)


def _too_large(limit: int) -> ServiceError:
    size = f"{limit / MIB:g} MiB (http.max_body_bytes)" if limit >= MIB else f"{limit} bytes"
    message = f"the body is larger than {size}"
    return ServiceError(Kind.INVALID, message, code="body_too_large", status=413)


class Door(asyncio.Protocol):
    """A connection before it is let in: all of them are bounded, and peers share the places."""

    def __init__(self, server: web.Server, limit: int) -> None:
        self._server = server
        self._limit = limit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        inside = self._server.connections
        if len(inside) >= self._limit and self._is_refused(transport, inside):
            cast(asyncio.Transport, transport).write(_NO_PLACE)
            transport.close()
            return
        handler = self._server()
        transport.set_protocol(handler)
        handler.connection_made(transport)

    def _is_refused(
        self, transport: asyncio.BaseTransport, inside: list[web.RequestHandler]
    ) -> bool:
        held = Counter(_peer(one.transport) for one in inside)
        return is_refused(self._limit, held, _peer(transport))


def _peer(transport: asyncio.BaseTransport | None) -> str:
    name = transport.get_extra_info("peername") if transport is not None else None
    return str(name[0]) if name else ""


_NO_PLACE_BODY = b'{"error":{"message":"too many connections","code":"connections_full"}}'
_NO_PLACE = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_NO_PLACE_BODY), _NO_PLACE_BODY)
)
