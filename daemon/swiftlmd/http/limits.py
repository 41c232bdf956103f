"""Bounds on what a client may ask the daemon to hold: body bytes, body time, requests in flight."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from swiftlm_engine.brain.shares import is_refused
from swiftlmd.config.http import HttpOptions
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.http.unpacking import TooLarge, is_unreadable, unpack

MIB = 1 << 20


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


async def read_body(request: web.Request, options: HttpOptions) -> bytes:
    """The whole body; refuses one that is too large or that dribbles in for too long."""
    if (request.content_length or 0) > options.max_body_bytes:
        raise _too_large(options)
    try:
        async with asyncio.timeout(options.body_timeout_s):
            raw = await request.read()
        return await _unpacked(raw, request, options)
    except (web.HTTPRequestEntityTooLarge, TooLarge):
        raise _too_large(options) from None
    except (web.RequestPayloadError, zlib.error):
        raise ServiceError(
            Kind.INVALID,
            "the body is not encoded as its headers say",
            code="invalid_encoding",
        ) from None
    except TimeoutError:
        raise ServiceError(
            Kind.INVALID,
            f"the body did not arrive within {options.body_timeout_s:g} s",
            code="body_timeout",
            status=408,
        ) from None


async def _unpacked(raw: bytes, request: web.Request, options: HttpOptions) -> bytes:
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
    return await asyncio.to_thread(unpack, raw, encoding, options.max_body_bytes)


def _too_large(options: HttpOptions) -> ServiceError:
    return ServiceError(
        Kind.INVALID,
        f"the body is larger than {options.max_body_bytes / MIB:g} MiB (http.max_body_bytes)",
        code="body_too_large",
        status=413,
    )
