"""Settings of the HTTP server, and how the configuration fills them."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from swiftlm_proto.paths import HTTP_PORT
from swiftlmd.config.key_hash import bare_hash
from swiftlmd.config.load import ConfigError
from swiftlmd.config.settings import Settings


def http_options(
    settings: Settings, authority: Path | None = None, certified: tuple[str, ...] = ()
) -> HttpOptions:
    """Raises ConfigError for an address that must not be served like this.

    `certified`: the names in the certificate of `authority`."""
    encrypted = settings.http_tls != "off" and not is_loopback(settings.http_host)
    options = HttpOptions(
        host=settings.http_host,
        port=settings.http_port,
        api_keys=api_keys(settings),
        cors_origins=settings.http_allowed_origins,
        allowed_hosts=settings.http_allowed_hosts,
        tls_port=settings.http_tls_port if encrypted else 0,
        authority=authority if encrypted and settings.http_tls == "auto" else None,
        own_hosts=certified if encrypted and settings.http_tls == "auto" else (),
        web=settings.http_web,
        max_body_bytes=settings.http_max_body_bytes,
        max_bodies_bytes=4 * settings.http_max_body_bytes,
        max_generations=settings.http_max_in_flight,
        comment_s=settings.http_keepalive,
    )
    try:
        options.check()
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return options


def api_keys(settings: Settings) -> tuple[ApiKey, ...]:
    """Every key that is let in; those without a name may use the service, not administer it."""
    unnamed = (ApiKey(bare_hash(key)) for key in settings.http_api_keys)
    named = (_named_key(name, text) for name, text in settings.http_keys.items())
    return (*unnamed, *named)


def key_hashes(settings: Settings) -> tuple[str, ...]:
    """sha256 of every key that is let in, in hex."""
    return tuple(key.digest for key in api_keys(settings))


def _named_key(name: str, text: str) -> ApiKey:
    """`sha256:HASH`, and what `keys add` wrote behind it: `;admin`, `;until=SECONDS`."""
    digest, *notes = text.split(";")
    is_admin, expires_at = False, NEVER
    for note in notes:
        if note == "admin":
            is_admin = True
        elif note.startswith("until=") and note[6:].isdecimal():
            expires_at = float(note[6:])
        else:
            message = f"http.keys, {name!r}: {note!r} is neither `admin` nor `until=SECONDS`"
            raise ConfigError(message)
    return ApiKey(bare_hash(digest), name, is_admin, expires_at)


MIB = 1 << 20


NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key that is let in; `digest` is its sha256 in hex."""

    digest: str
    name: str = ""
    is_admin: bool = False
    expires_at: float = NEVER  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class HttpOptions:
    host: str = "127.0.0.1"
    port: int = HTTP_PORT
    api_key_hashes: tuple[str, ...] = ()  # sha256 of each key without a name, in hex
    api_keys: tuple[ApiKey, ...] = ()  # those with a name
    cors_origins: tuple[str, ...] = ()  # "*" = any
    allowed_hosts: tuple[str, ...] = ()  # besides loopback names and the bound one; "*" = any
    own_hosts: tuple[str, ...] = ()  # names that our own certificate is for
    tls_port: int = 0  # of HTTPS, the only way in from other machines; 0 = plain HTTP at `host`
    authority: Path | None = None  # the certificate that devices are asked to trust
    web: bool = True  # the companion at `/`
    max_body_bytes: int = 32 * MIB
    max_bodies_bytes: int = 256 * MIB  # of all requests together
    max_connections: int = 1024
    body_timeout_s: float = 60.0  # of silence; slow ones get more by what has come
    keepalive_timeout_s: float = 75.0  # idle connections, and the time a request head may take
    max_generations: int = 256  # requests in flight over HTTP, before any engine's own queue
    first_comment_s: float = 5.0
    comment_s: float = 10.0
    progress_s: float = 2.0  # between comments, where one says more than the last
    stall_s: float = 60.0  # a reader that takes nothing for this long is dropped
    max_choices: int = 16
    max_prompts: int = 128
    max_stops: int = 64
    fetch_images: bool = True
    max_images: int = 32
    max_image_bytes: int = 20 * MIB
    max_images_bytes: int = 64 * MIB  # of one request: they go to the engine in one message
    image_timeout_s: float = 15.0
    max_embedding_inputs: int = 2048
    max_stored_responses: int = 256
    max_stored_bytes: int = 64 * MIB
    request_deadline_s: float = 0.0  # 0 = none

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the port."""
        return is_loopback(self.host)

    @property
    def plain_host(self) -> str:
        """Where HTTP without encryption listens."""
        return "127.0.0.1" if self.tls_port else self.host

    def check(self) -> None:
        """Raises ValueError for an address that must not be served like this."""
        if not self.loopback and not (self.api_key_hashes or self.api_keys):
            raise ValueError(
                f"http.host {self.host!r} can be reached from other machines, and no API key is "
                "set; add one with `swiftlmctl keys add NAME` or bind 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Whether `host` (a name or an address, no port) means this machine only."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
