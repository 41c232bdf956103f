"""Images in requests: data URIs, and https addresses of public hosts; nothing else.

A fetched image must not become a way into the local network: the name is resolved here, private
addresses are refused, the connection goes to the very address that was checked, which is
looked at once more when its socket is made, and each redirect is checked again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import logging
import socket
import unicodedata
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_to_bytes, urljoin, urlsplit

import aiohttp
from aiohttp import AddrInfoType
from aiohttp.abc import AbstractResolver, ResolveResult

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions
from swiftlmd.faults import ServiceError
from swiftlmd.http.errors import invalid, unsupported

log = logging.getLogger(__name__)

MIB = 1 << 20
_LARGE = 1 << 16  # characters; decoding fewer takes less than handing them to a thread
MAX_REDIRECTS = 3

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class ImageLoader:
    """Turns an image's address into its bytes; one HTTP session, made when first needed."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._session: aiohttp.ClientSession | None = None

    @property
    def max_images(self) -> int:
        return self._options.max_images

    @property
    def max_images_bytes(self) -> int:
        return self._options.max_images_bytes

    async def load(self, url: str, param: str) -> m.Image:
        if url[:5].lower() == "data:":
            head, comma, data = url.partition(",")
            if not comma:
                raise invalid(f"{param}: the data URI has no data", param, code="invalid_image_url")
            if head.lower().endswith(";base64"):
                return await self.from_base64(data, param)
            return await self._decoded(_unquote, data, 3, param)
        scheme = url.partition(":")[0].strip().lower()
        if scheme != "https":
            raise invalid(
                f"{param}: image addresses must be data: or https:, not {scheme[:16] or 'a path'}",
                param,
                code="invalid_image_url",
            )
        if not self._options.fetch_images:
            raise unsupported(f"{param}: fetching images is off here; send a data: URI", param)
        return self._checked(await self._fetch(url, param), param)

    async def from_base64(self, data: str, param: str) -> m.Image:
        return await self._decoded(_from_base64, data, 4 / 3, param)

    async def _decoded(
        self, decode: Callable[[str], bytes], data: str, factor: float, param: str
    ) -> m.Image:
        """`data` has at most `factor` characters for each byte. Its size is judged before anything
        is decoded, and much of it is decoded on a thread: the loop has other streams."""
        if len(data) > self._options.max_image_bytes * factor + 4:
            raise self._too_large(param)
        try:
            if len(data) > _LARGE:
                content = await asyncio.to_thread(decode, data)
            else:
                content = decode(data)
        except (binascii.Error, ValueError):
            raise invalid(f"{param}: the image is not base64", param) from None
        return self._checked(content, param)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _checked(self, content: bytes, param: str) -> m.Image:
        if len(content) > self._options.max_image_bytes:
            raise self._too_large(param)
        media_type = _media_type(content)
        if not media_type:
            raise invalid(
                f"{param}: not a PNG, JPEG, GIF or WebP image", param, code="invalid_image"
            )
        return m.Image(content=content, media_type=media_type)

    async def _fetch(self, url: str, param: str) -> bytes:
        try:
            async with asyncio.timeout(self._options.image_timeout_s):
                for _ in range(MAX_REDIRECTS + 1):
                    content, url = await self._get(url, param)
                    if content is not None:
                        return content
        # ValueError: what the client library finds wrong with an address, UnicodeError among them.
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            # One text for all: which ports of which machines answer is nobody's business.
            log.debug("image not fetched: %r", error)
            raise _unreachable(param, "no public host sends it") from error
        raise _unreachable(param, f"more than {MAX_REDIRECTS} redirects")

    async def _get(self, url: str, param: str) -> tuple[bytes | None, str]:
        """The body, or None and the address that a redirect names."""
        refuse_private_address(url, param)
        async with self._open_session().get(url, allow_redirects=False) as reply:
            if reply.status in (301, 302, 303, 307, 308):
                return None, urljoin(url, reply.headers.get("Location", ""))
            if reply.status != 200:
                raise _unreachable(param, f"status {reply.status}")
            if (reply.content_length or 0) > self._options.max_image_bytes:
                raise self._too_large(param)
            content = bytearray()
            async for block in reply.content.iter_chunked(1 << 16):
                content += block
                if len(content) > self._options.max_image_bytes:
                    raise self._too_large(param)
            return bytes(content), url

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                resolver=PublicResolver(), limit=8, socket_factory=public_socket
            )
            self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        return self._session

    def _too_large(self, param: str) -> ServiceError:
        limit = self._options.max_image_bytes / MIB
        return invalid(f"{param}: larger than {limit:g} MiB", param, code="image_too_large")


class PublicResolver(AbstractResolver):
    """Resolves names to public addresses only; the caller connects to what was checked."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        results = [_result(host, entry) for entry in found]
        if not results or not all(is_public(result["host"]) for result in results):
            raise OSError(f"{host} is not a public host")
        return results

    async def close(self) -> None:
        """Nothing is held."""


def public_socket(address: AddrInfoType) -> socket.socket:
    """A socket for a connection to `address`, the very one that is made. Raises OSError for one
    that is not public: an address that the client library read out of a name asks no resolver."""
    family, kind, proto, _, where = address
    if not is_public(str(where[0])):
        raise OSError(f"{where[0]} is not a public address")
    return socket.socket(family, kind, proto)


def _result(host: str, entry: tuple[Any, ...]) -> ResolveResult:  # Any: getaddrinfo's own type
    family, _, proto, _, address = entry
    return ResolveResult(
        hostname=host,
        host=address[0],
        port=address[1],
        family=family,
        proto=proto,
        flags=socket.AI_NUMERICHOST,
    )


def is_public(address: str) -> bool:
    """Whether the address is of the open internet: not loopback, private, link-local, ..."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.sixtofour or (ip.teredo and ip.teredo[1])
        if inner:
            return is_public(str(inner))
        if any(ip in network for network in _HOLD_IPV4):
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
        if ip in _LOCAL_NAT64:
            return False
    return ip.is_global and not ip.is_multicast


# IPv4 in the last 32 bits: compatible (which holds ::1), mapped, translated, NAT64.
_HOLD_IPV4 = tuple(
    ipaddress.IPv6Network(text)
    for text in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")
)
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")


def refuse_private_address(url: str, param: str) -> None:
    """Raises for a redirect away from https and for an address literal that is not public."""
    try:
        parts = urlsplit(url)
        host = _plain_dots(parts.hostname or "")
    except ValueError:
        raise invalid(f"{param}: not an address", param, code="invalid_image_url") from None
    if parts.scheme.lower() != "https" or not host:
        raise invalid(f"{param}: only https addresses are fetched", param, code="invalid_image_url")
    try:
        public = is_public(host)
    except ValueError:
        # aiohttp takes "127.1" and "2130706433" for addresses and asks no resolver. A name is
        # fine here: PublicResolver looks at what it means.
        public = not host.replace(".", "").isdigit()
    if not public:
        raise invalid(f"{param}: {host} is not a public host", param, code="invalid_image_url")


def _plain_dots(host: str) -> str:
    """As IDNA reads it: wide digits and three more kinds of dots."""
    return unicodedata.normalize("NFKC", host).replace("\u3002", ".")


def _unquote(data: str) -> bytes:
    return unquote_to_bytes(data)


def _from_base64(data: str) -> bytes:
    return base64.b64decode(data.encode("ascii", "replace"), validate=False)


def _media_type(content: bytes) -> str:
    for signature, media_type in _SIGNATURES:
        if content.startswith(signature):
            return media_type
    return "image/webp" if content[:4] == b"RIFF" and content[8:12] == b"WEBP" else ""


def _unreachable(param: str, reason: str) -> ServiceError:
    return invalid(f"{param}: could not fetch the image: {reason}", param, code="image_unreachable")
