"""Who may talk to the port: Host and Origin checks, API keys, CORS (off unless configured).

A web page can make a browser send requests to 127.0.0.1, by a foreign Origin or by a name that
it re-points at loopback; both are refused before a handler sees the request.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from aiohttp import web

from swiftlmd.config.http import HttpOptions, is_loopback
from swiftlmd.faults import Kind, ServiceError

# Liveness is asked by supervisors that hold no key, and says nothing about requests or models.
# The page of the companion is static; it asks for a key itself, or pairs for one.
OPEN_PATHS = frozenset(
    {"/", "/health", "/ready", "/sw.js", "/manifest.webmanifest", "/pair", "/authority.crt"}
)
OPEN_FOLDER = "/web/"

_CORS_METHODS = "GET, HEAD, POST, DELETE, OPTIONS"


class Guard:
    """Decides from the head of a request alone."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._hashes: tuple[str, ...] = ()
        self._hosts: frozenset[str] = frozenset()
        self._origins: frozenset[str] = frozenset()
        self.let_in(options.api_key_hashes)
        self.answer_to(options.allowed_hosts, options.cors_origins)

    @property
    def has_keys(self) -> bool:
        return bool(self._hashes)

    def let_in(self, key_hashes: tuple[str, ...]) -> None:
        """From now on these keys are right and no others."""
        self._hashes = tuple(h.removeprefix("sha256:").lower() for h in key_hashes)

    def answer_to(self, hosts: Iterable[str], origins: Iterable[str]) -> None:
        """From now on these names and pages are ours, and no others but the address's own."""
        self._hosts = frozenset(h.lower() for h in (*hosts, self._options.host))
        self._origins = frozenset(o.rstrip("/").lower() for o in origins)

    def check(self, request: web.BaseRequest) -> None:
        """Raises 403 for a foreign Host or Origin and 401 for a missing or wrong key."""
        self._check_host(request)
        self._check_origin(request)
        is_open = request.path in OPEN_PATHS or request.path.startswith(OPEN_FOLDER)
        if request.method != "OPTIONS" and not is_open:
            self._check_key(request)

    def authorized(self, request: web.BaseRequest) -> bool:
        """Whether the request may see more than liveness (no key configured, or a right one)."""
        if not self._hashes:
            return self._options.loopback  # a door to the network never opens by losing its keys
        return self._key_is_right(_key_of(request))

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
            "Vary": "Origin",
        }

    def _check_host(self, request: web.BaseRequest) -> None:
        host = request.headers.get("Host")
        if host is None:  # HTTP/1.0 probes; a browser always sends one
            return
        name = host_name(host)
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
        if urlsplit(origin).netloc.lower() == request.headers.get("Host", "").lower() != "":
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

    def _check_key(self, request: web.BaseRequest) -> None:
        if not self.authorized(request):
            raise ServiceError(
                Kind.INVALID,
                "this service needs an API key: send `Authorization: Bearer KEY` or `x-api-key`",
                code="invalid_api_key",
                status=401,
            )

    def _key_is_right(self, key: str) -> bool:
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
        # Every hash is compared, so the time does not tell which one was near.
        matches = [hmac.compare_digest(digest, known) for known in self._hashes]
        return any(matches)


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
