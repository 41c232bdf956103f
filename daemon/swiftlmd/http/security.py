"""Who may talk to the port: Host and Origin checks, API keys, CORS (off unless configured).

A web page can make a browser send requests to 127.0.0.1, by a foreign Origin or by a name that
it re-points at loopback; both are refused before a handler sees the request.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum

from aiohttp import web

from swiftlmd.config.http import ApiKey, HttpOptions, is_loopback
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.http.sessions import PATH as SESSION_PATH
from swiftlmd.http.sessions import Sessions

# Liveness is asked by supervisors that hold no key, and says nothing about requests or models.
# The page of the companion is static; it asks for a key itself, or pairs for one.
OPEN_PATHS = frozenset(
    {
        "/",
        "/health",
        "/ready",
        "/sw.js",
        "/manifest.webmanifest",
        "/pair",
        "/authority.crt",
        SESSION_PATH,
    }
)
OPEN_FOLDER = "/web/"


class Scope(IntEnum):
    """What a caller may do, and what a route asks for."""

    OPEN = 0  # anybody
    USE = 1  # ask models, list, load and fetch them by name
    ADMIN = 2  # change configuration and keys, remove, stop: the owner, and keys meant for it


@dataclass(frozen=True, slots=True)
class Caller:
    scope: Scope
    key: str = ""  # the name of the key that was sent


_STRANGER = Caller(Scope.OPEN)
_CORS_METHODS = "GET, HEAD, POST, DELETE, OPTIONS"


class Guard:
    """Decides from the head of a request alone."""

    def __init__(
        self,
        options: HttpOptions,
        sessions: Sessions | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._options = options
        self._sessions = sessions or Sessions()
        self._clock = clock
        self._keys: tuple[ApiKey, ...] = ()
        self._hosts: frozenset[str] = frozenset()
        self._origins: frozenset[str] = frozenset()
        self.let_in((*options.api_key_hashes, *options.api_keys))
        self.answer_to(options.allowed_hosts, options.cors_origins)

    @property
    def has_keys(self) -> bool:
        return bool(self._keys)

    def let_in(self, keys: Iterable[str | ApiKey]) -> None:
        """From now on these keys are right and no others; a bare hash is a key without a name."""
        whole = (ApiKey(key) if isinstance(key, str) else key for key in keys)
        self._keys = tuple(
            replace(key, digest=key.digest.removeprefix("sha256:").lower()) for key in whole
        )

    def answer_to(self, hosts: Iterable[str], origins: Iterable[str]) -> None:
        """From now on these names and pages are ours, and no others but the address's own."""
        named = (host_name(h) for h in hosts)  # as a browser shows it, perhaps with its port
        self._hosts = frozenset((*named, self._options.host.lower(), *self._options.own_hosts))
        self._origins = frozenset(o.rstrip("/").lower() for o in origins)

    def check(self, request: web.BaseRequest, needed: Scope = Scope.USE) -> Caller:
        """Raises 403 for a foreign Host or Origin, 401 for a missing or wrong key, and 403 for
        what is the owner's."""
        self._check_host(request)
        self._check_origin(request)
        caller = self.caller(request)
        is_open = request.path in OPEN_PATHS or request.path.startswith(OPEN_FOLDER)
        if request.method == "OPTIONS" or is_open or caller.scope >= needed:
            return caller
        raise _no_key() if caller.scope < Scope.USE else _not_owner()

    def authorized(self, request: web.BaseRequest) -> bool:
        """Whether the request may see more than liveness (no key configured, or a right one)."""
        return self.caller(request).scope >= Scope.USE

    def caller(self, request: web.BaseRequest) -> Caller:
        """Who asks, by the head of the request."""
        if self._sessions.is_open(request):
            return Caller(Scope.ADMIN, "owner")
        if not self._keys:  # a door to the network never opens by losing its keys
            return Caller(Scope.USE) if self._options.loopback else _STRANGER
        key = self._key_that_was_sent(_key_of(request))
        if key is None:
            return _STRANGER
        return Caller(Scope.ADMIN if key.is_admin else Scope.USE, key.name)

    def cors_headers(self, request: web.BaseRequest) -> dict[str, str]:
        """What a browser needs to let a configured foreign page read the answer."""
        origin = request.headers.get("Origin")
        if not origin or not self._origin_is_configured(origin):
            return {}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": _CORS_METHODS,
            "Access-Control-Allow-Headers": request.headers.get(
                "Access-Control-Request-Headers", "authorization, content-type, x-api-key"
            ),
            "Access-Control-Expose-Headers": "x-request-id, retry-after",
            "Access-Control-Max-Age": "600",
        }

    def is_behind_proxy(self, origin: str, fetch_site: str) -> bool:
        """Whether the page at `origin` is ours though the proxy before us changed Host: the owner
        names it, and the browser, which no page can make lie, says it asks where it came from."""
        return fetch_site == "same-origin" and origin.rstrip("/").lower() in self._origins

    def _check_host(self, request: web.BaseRequest) -> None:
        """Also of a target that names its host, which goes before the header (RFC 9112, 3.2.2)."""
        host = request.headers.get("Host")
        for named in (host, _host_of_target(request.raw_path)):
            if named is not None:  # HTTP/1.0 probes send none; a browser always does
                self._check_name(host_name(named))

    def _check_name(self, name: str) -> None:
        if is_loopback(name) or name in self._hosts or "*" in self._hosts:
            return
        # An address cannot be re-pointed; only a name can.
        if not self._options.loopback and _is_address(name):
            return
        raise ServiceError(
            Kind.INVALID,
            f"host {name!r} is not served here; add it to http.allowed_hosts if it is yours",
            code="host_not_allowed",
            status=403,
        )

    def _check_origin(self, request: web.BaseRequest) -> None:
        origin = request.headers.get("Origin")
        if origin is None or self._origin_is_configured(origin):
            return
        if is_own_page(origin, request.headers.get("Host", "")):
            return
        raise ServiceError(
            Kind.INVALID,
            f"pages of {origin[:200]!r} may not use this service; "
            "add the origin to http.allowed_origins if it is yours",
            code="origin_not_allowed",
            status=403,
        )

    def _origin_is_configured(self, origin: str) -> bool:
        return "*" in self._origins or origin.rstrip("/").lower() in self._origins

    def _key_that_was_sent(self, sent: str) -> ApiKey | None:
        digest = hashlib.sha256(sent.encode("utf-8", "surrogateescape")).hexdigest()
        now = self._clock()
        # Every hash is compared, so the time does not tell which one was near.
        found = [key for key in self._keys if hmac.compare_digest(digest, key.digest)]
        good = [key for key in found if now < key.expires_at]
        return max(good, key=lambda key: key.is_admin, default=None)


def _no_key() -> ServiceError:
    return ServiceError(
        Kind.INVALID,
        "this service needs an API key: send `Authorization: Bearer KEY` or `x-api-key`",
        code="invalid_api_key",
        status=401,
    )


def _not_owner() -> ServiceError:
    return ServiceError(
        Kind.INVALID,
        "only the owner of this service may do that: run `swiftlmctl open` on its machine, "
        "or send a key that was made with `swiftlmctl keys add NAME --admin`",
        code="owner_only",
        status=403,
    )


def _host_of_target(target: str) -> str | None:
    """Of `GET http://host/path`; None of the usual `GET /path`."""
    scheme, colon, rest = target.partition("://")
    if not colon or not scheme.isalpha():
        return None
    return re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]


_DEFAULT_PORTS = {"http": "80", "https": "443"}


def is_own_page(origin: str, host: str) -> bool:
    """Whether a page of `origin` is one that was served under `host`; a default port may be left
    out by either."""
    scheme, colon, rest = origin.lower().partition("://")
    if not colon or scheme not in _DEFAULT_PORTS or not host:
        return False
    return _with_port(rest.rstrip("/"), scheme) == _with_port(host.strip().lower(), scheme)


def _with_port(host: str, scheme: str) -> tuple[str, str]:
    name, colon, port = host.rpartition(":")
    if colon and port.isdecimal():
        return name, port
    return host, _DEFAULT_PORTS[scheme]


def host_name(host: str) -> str:
    """The name in a Host header, without port and brackets, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host.rstrip(":")


def _key_of(request: web.BaseRequest) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    return request.headers.get("x-api-key", "").strip()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
