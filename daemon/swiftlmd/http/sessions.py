"""The owner's session in a browser.

Only the admin socket, which nobody but the owner can open, hands out the address that begins one:
`swiftlmctl open` shows it. The token in it is good once and for a minute; the cookie that replaces
it stays in the browser, is sent by our own pages only, and is forgotten after two idle hours.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable

from aiohttp import web

from swiftlmd.config.http import is_loopback
from swiftlmd.faults import Kind, ServiceError

COOKIE = "swiftlm_session"
PATH = "/open"
TOKEN_S = 60.0
IDLE_S = 2 * 3600.0
_MAX_TOKENS, _MAX_SESSIONS = 16, 64


class Sessions:
    """Tokens that may become sessions, and sessions. `clock` in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens: dict[str, float] = {}  # digest -> good until
        self._sessions: dict[str, float] = {}  # digest -> good until, renewed by use

    def offer(self) -> str:
        """A token that begins one session."""
        return _new(self._tokens, self._clock() + TOKEN_S, _MAX_TOKENS)

    def address(self, http_address: str) -> str:
        """What the owner's browser is sent to; the session is for loopback, whatever is served."""
        port = http_address.rpartition(":")[2]
        return f"http://127.0.0.1:{port}{PATH}?token={self.offer()}"

    def begin(self, token: str) -> str:
        """Uses the token up; the cookie's value. Raises 403 for one that is not good."""
        if self._clock() >= self._tokens.pop(_digest(token), 0.0):
            raise ServiceError(
                Kind.INVALID,
                "this address was used or is out of date; run `swiftlmctl open` again",
                code="bad_session_token",
                status=403,
            )
        return _new(self._sessions, self._clock() + IDLE_S, _MAX_SESSIONS)

    def is_open(self, request: web.BaseRequest) -> bool:
        """Whether the request comes from a browser of the owner, on this machine."""
        if "Cookie" not in request.headers:
            return False
        digest = _digest(request.cookies.get(COOKIE, ""))
        now = self._clock()
        if now >= self._sessions.get(digest, 0.0) or not is_loopback(request.remote or ""):
            return False
        self._sessions[digest] = now + IDLE_S
        return True

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """`GET /open?token=...`: sets the cookie and goes to the page."""
        if request.method != "GET":  # HEAD: a link that is only looked at
            raise web.HTTPMethodNotAllowed(request.method, ["GET"])
        value = self.begin(request.query.get("token", ""))
        reply = web.Response(status=303, headers={"Location": "./", "Cache-Control": "no-store"})
        reply.set_cookie(COOKIE, value, httponly=True, samesite="Strict", path="/")
        return reply


def _new(known: dict[str, float], good_until: float, most: int) -> str:
    while len(known) >= most:
        del known[min(known, key=lambda digest: known[digest])]
    value = secrets.token_urlsafe(32)
    known[_digest(value)] = good_until
    return value


def _digest(value: str) -> str:
    """Looked up by hash: the time that takes says nothing of what would be right."""
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()
