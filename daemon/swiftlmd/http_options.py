"""What the HTTP surface is told, from the configuration."""

from __future__ import annotations

from pathlib import Path

from swiftlmd.config.key_hash import bare_hash
from swiftlmd.config.load import ConfigError
from swiftlmd.config.settings import Settings
from swiftlmd.http.options import HttpOptions, is_loopback


def http_options(settings: Settings, authority: Path | None = None) -> HttpOptions:
    """Raises ConfigError for an address that must not be served like this."""
    encrypted = settings.http_tls != "off" and not is_loopback(settings.http_host)
    options = HttpOptions(
        host=settings.http_host,
        port=settings.http_port,
        api_key_hashes=key_hashes(settings),
        cors_origins=settings.http_allowed_origins,
        allowed_hosts=settings.http_allowed_hosts,
        tls_port=settings.http_tls_port if encrypted else 0,
        authority=authority if encrypted and settings.http_tls == "auto" else None,
        web=settings.http_web,
        max_body_bytes=settings.http_max_body_bytes,
        max_generations=settings.http_max_in_flight,
        comment_s=settings.http_keepalive,
        wedged_after_s=settings.engine_stall / 2,
    )
    try:
        options.check()
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return options


def key_hashes(settings: Settings) -> tuple[str, ...]:
    """sha256 of every key that is let in, in hex."""
    return tuple(map(bare_hash, (*settings.http_api_keys, *settings.http_keys.values())))
