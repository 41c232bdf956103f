"""HTTPS for the local network: its own port, so that keys never travel in clear.

The plain port stays on loopback, for the clients of this machine. A certificate that is made here
follows the machine's addresses: a new network gets a new one, from the same authority.
"""

from __future__ import annotations

import asyncio
import errno
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
from swiftlmd.lifecycle.instance import port_holder

log = logging.getLogger(__name__)

_LOOK_S = 60.0
_AGAIN_S = 5.0
_MAY_PASS = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)  # another program, or a network to come


class LanPort:
    """`folder` is for the certificates that are made here."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = settings
        self._made = Authority(folder) if settings.http_tls == "auto" else None
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.problem = ""  # why nobody can connect at the moment

    @property
    def authority(self) -> Path | None:
        return self._made.file if self._made else None

    @asynccontextmanager
    async def listening(self, runner: web.AppRunner, options: HttpOptions) -> AsyncIterator[None]:
        """During the block its certificate is kept up to date; the port closes with the runner.

        A port that is busy, or an address that is not there yet, is tried again: the plain port
        serves meanwhile. Raises ConfigError without a usable certificate or port.
        """
        if not options.tls_port:
            yield
            return
        await asyncio.to_thread(self._load)
        tasks = set()
        if not await self._open(runner, options):
            tasks.add(asyncio.create_task(self._open_later(runner, options)))
        if self._made is not None:
            tasks.add(asyncio.create_task(self._follow(self._made)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _open(self, runner: web.AppRunner, options: HttpOptions) -> bool:
        """Whether it listens now; False when that may still come."""
        host, port = options.host, options.tls_port
        site = web.TCPSite(runner, host, port, ssl_context=self._context)
        try:
            await site.start()
        except OSError as error:
            await site.stop()
            if error.errno not in _MAY_PASS:
                raise ConfigError(
                    f"port {port} of {host} cannot be opened ({error.strerror}); "
                    "choose another with `swiftlmctl config set http.tls_port N`"
                ) from error
            self.problem = await asyncio.to_thread(_not_open, error.errno, host, port)
            return False
        self.problem = ""
        log.info("https ready address=%s:%d", host, port)
        return True

    async def _open_later(self, runner: web.AppRunner, options: HttpOptions) -> None:
        log.warning("%s", self.problem)
        try:
            while True:
                await asyncio.sleep(_AGAIN_S)
                if await self._open(runner, options):
                    return
        except ConfigError as error:
            self.problem = str(error)
            log.error("%s", error)

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


def _not_open(code: int | None, host: str, port: int) -> str:
    if code == errno.EADDRINUSE:
        reason = f"port {port} (http.tls_port) is in use by {port_holder(port)}"
    else:
        reason = f"{host} (http.host) is not an address of this machine"
    return f"no HTTPS for the network: {reason}; it is tried again every {_AGAIN_S:g} s"
