"""Pairing: a device of the local network gets an API key of its own for a one-time token.

`POST /admin/pair_offer` makes the token, which the page shows as a QR code on a screen that is
already trusted; `POST /pair`, the one call that needs no key, exchanges it. A token is good once
and for five minutes, only the newest counts, and guesses are few.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator

from aiohttp import web

from swiftlm_proto import messages as m
from swiftlmd.faults import Kind, ServiceError, from_fault
from swiftlmd.http.admin_operations import refuse_foreign_pages
from swiftlmd.http.certificates import fingerprint
from swiftlmd.http.context import CONTEXT, GUARD
from swiftlmd.http.errors import invalid
from swiftlmd.http.openai_json import dumps
from swiftlmd.http.routes import Route
from swiftlmd.http.schema import Body
from swiftlmd.http.security import Scope

OFFER_S = 300.0
_TRIES, _TRIES_S = 10, 60.0
_PEERS = 1024  # whose tries are counted
_MAX_BODY_BYTES = 4096
_MAX_NAME = 40
_CERTIFICATE = "application/x-x509-ca-cert"


class PairRequest(Body):
    token: str
    name: str  # of the device, for the list of keys


class Offers:
    """The one token that is good now. `clock` in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._token = ""
        self._good_until = 0.0
        self._tries: dict[str, deque[float]] = {}  # of each peer, the latest

    def make(self) -> str:
        self._token, self._good_until = secrets.token_urlsafe(16), self._clock() + OFFER_S
        return self._token

    def refuse_guessers(self, peer: str) -> None:
        """Raises 429 after too many tries of one peer; it does not count those of others."""
        tries = self._tries.get(peer, deque())
        if len(tries) == _TRIES and self._clock() < tries[0] + _TRIES_S:
            raise ServiceError(
                Kind.INVALID,
                "too many tries to pair; try again in a minute",
                code="rate_limit_exceeded",
                status=429,
                retry_after_s=60,
            )

    def take(self, token: str, peer: str = "") -> None:
        """Uses the token up. Raises 429 after too many tries of `peer`, 403 for a wrong one."""
        self.refuse_guessers(peer)
        now = self._clock()
        tries = self._tries.pop(peer, None) or deque(maxlen=_TRIES)
        tries.append(now)
        self._tries[peer] = tries  # the newest stands last
        if len(self._tries) > _PEERS:
            del self._tries[next(iter(self._tries))]
        right = hmac.compare_digest(token.encode(errors="replace"), self._token.encode())
        if not (self._token and right and now < self._good_until):
            raise ServiceError(
                Kind.INVALID,
                "this pairing code is used or out of date; show a new one under Settings, Network",
                code="bad_pairing_token",
                status=403,
            )
        self._token = ""


class Pairing:
    """The two calls."""

    def __init__(self, admin: m.AdminBase) -> None:
        self._admin = admin
        self._offers = Offers()

    def routes(self) -> Iterator[Route]:
        yield Route(
            "POST",
            "/admin/pair_offer",
            "admin_pair_offer",
            self.offer,
            "A token to pair with",
            scope=Scope.ADMIN,
        )
        yield Route(
            "GET",
            "/authority.crt",
            "authority",
            self.authority,
            "What devices of the local network are asked to trust",
            media=_CERTIFICATE,
        )
        summary = "Exchange a pairing token for a key"
        yield Route("POST", "/pair", "pair", self.pair, summary, PairRequest)

    async def offer(self, request: web.Request) -> web.Response:
        refuse_foreign_pages(request)
        options = request.app[CONTEXT].options
        if not request.app[GUARD].has_keys:
            raise ServiceError(
                Kind.INVALID, "add an API key first: without one every device is let in", status=409
            )
        host = lan_address() if options.host in ("0.0.0.0", "::") else options.host
        port = options.tls_port or request.url.port or options.port
        url = f"{'https' if options.tls_port else 'http'}://{host}:{port}"
        trust = ""
        if options.authority is not None:
            trust = await asyncio.to_thread(fingerprint, options.authority)
        reply = {"token": self._offers.make(), "expires_s": OFFER_S, "url": url}
        return web.json_response({**reply, "fingerprint": trust}, dumps=dumps)

    async def authority(self, request: web.Request) -> web.Response:
        file = request.app[CONTEXT].options.authority
        if file is None:
            raise web.HTTPNotFound
        content = await asyncio.to_thread(file.read_bytes)
        return web.Response(body=content, content_type=_CERTIFICATE)

    async def pair(self, request: web.Request) -> web.Response:
        refuse_foreign_pages(request)
        peer = request.remote or ""
        self._offers.refuse_guessers(peer)  # before anything is read
        body = await request.app[CONTEXT].bodies.read(request, PairRequest, _MAX_BODY_BYTES)
        name = _shown(body.name)
        self._offers.take(body.token, peer)
        added = await self._admin.add_key(m.AddKeyRequest(name=name))
        if added.fault is not None:
            raise from_fault(added.fault)
        return web.json_response({"name": added.name, "key": added.key}, dumps=dumps)


def lan_address() -> str:
    """This machine's address on the way out; no packet is sent. Loopback without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address, never reached
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _shown(name: str) -> str:
    shown = "".join(c for c in name if c.isprintable()).strip()[:_MAX_NAME]
    if not shown:
        raise invalid("name: the device needs a name", "name")
    return shown
