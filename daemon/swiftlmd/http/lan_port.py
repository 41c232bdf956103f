"""HTTPS for the local network: its own port, so that keys never travel in clear.

The plain port stays on loopback, for the clients of this machine. A certificate that is made here
follows the machine's addresses: a new network gets a new one, from the same authority.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from swiftlmd.config.http import HttpOptions
from swiftlmd.config.load import ConfigError
from swiftlmd.config.settings import Settings
from swiftlmd.http.certificates import Authority, Certificate, own_names

log = logging.getLogger(__name__)

_LOOK_S = 60.0


class LanPort:
    """`folder` is for the certificates that are made here."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = settings
        self._made = Authority(folder) if settings.http_tls == "auto" else None
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)

    @property
    def authority(self) -> Path | None:
        return self._made.file if self._made else None

    @asynccontextmanager
    async def listening(self, runner: web.AppRunner, options: HttpOptions) -> AsyncIterator[None]:
        """During the block its certificate is kept up to date; the port closes with the runner.

        Raises ConfigError without a usable certificate or port.
        """
        if not options.tls_port:
            yield
            return
        await self._open(runner, options)
        follower = asyncio.create_task(self._follow(self._made)) if self._made else None
        try:
            yield
        finally:
            if follower is not None:
                follower.cancel()
                await asyncio.wait({follower})

    async def _open(self, runner: web.AppRunner, options: HttpOptions) -> None:
        await asyncio.to_thread(self._load)
        site = web.TCPSite(runner, options.host, options.tls_port, ssl_context=self._context)
        try:
            await site.start()
        except OSError as error:
            raise ConfigError(
                f"port {options.tls_port} of {options.host} cannot be had ({error.strerror}); "
                "choose another with `swiftlmctl config set http.tls_port N`"
            ) from error
        log.info("https ready address=%s:%d", options.host, options.tls_port)

    async def _follow(self, made: Authority) -> None:
        """New connections get a certificate for the addresses of now."""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await asyncio.to_thread(self._renew, made)
            except (ConfigError, OSError) as error:
                log.warning("certificate not renewed: %s", error)

    def _renew(self, made: Authority) -> None:
        if not made.holds(own_names()):
            self._load()

    def _load(self) -> None:
        certificate = self._certificate()
        try:
            self._context.load_cert_chain(certificate.chain, certificate.key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"certificate {certificate.chain} cannot be used: {error}") from error

    def _certificate(self) -> Certificate:
        if self._made is not None:
            return self._made.certificate(own_names())
        settings = self._settings
        return Certificate(Path(settings.http_tls_certificate), Path(settings.http_tls_key))
