"""The admin socket: a file only its owner can open, and a look at who connects.

asyncio would unlink a live socket of another daemon and leave the new one open to others, so it
is bound here: only the holder of the instance lock binds, it probes before it unlinks, and the
file is born 0600 in a 0700 folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

from grpclib.protocol import H2Protocol
from grpclib.server import Server

log = logging.getLogger(__name__)

_UCRED = struct.Struct("=iII")  # Linux: pid, uid, gid
_SOL_LOCAL, _LOCAL_PEERCRED = 0, 0x001  # macOS
_XUCRED = struct.Struct("=IIh2x16I")  # macOS: version, uid, ngroups, groups
_XUCRED_VERSION = 0


class SocketInUse(Exception):
    """A live daemon answers on the socket."""


class NotOurs(Exception):
    """The socket's folder can be changed by somebody else."""


class PeerSocket(Protocol):
    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


@contextmanager
def bound_socket(path: Path) -> Iterator[socket.socket]:
    """A listening socket at `path`; the file goes with the block, if it is still ours."""
    private_folder(path.parent)
    _clear_stale(path)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o077)
    try:
        server.bind(str(path))
    except BaseException:
        server.close()
        raise
    finally:
        os.umask(before)
    os.chmod(path, 0o600)
    server.listen(128)
    server.setblocking(False)
    inode = path.stat().st_ino
    try:
        yield server
    finally:
        server.close()
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == inode:
                path.unlink()


def private_folder(folder: Path) -> None:
    """Makes `folder` with mode 0700; raises NotOurs when another user could change it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise NotOurs(f"{folder} is not a folder of this user; remove it and start again")
    if found.st_mode & 0o077:
        os.chmod(folder, 0o700)


def peer_uid(peer: PeerSocket, platform: str = sys.platform) -> int:
    """The user at the other end of a Unix socket, as the kernel says."""
    if platform == "darwin":
        content = peer.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED.size)
        version, uid = _XUCRED.unpack(content)[:2]
        if version != _XUCRED_VERSION:
            raise OSError(errno.EINVAL, f"unknown version {version} of the peer's credentials")
        return int(uid)
    so_peercred = getattr(socket, "SO_PEERCRED", 17)
    _, uid, _ = _UCRED.unpack(peer.getsockopt(socket.SOL_SOCKET, so_peercred, _UCRED.size))
    return int(uid)


def may_administer(uid: int, own_uid: int) -> bool:
    return uid in (own_uid, 0)


class OwnerOnlyServer(Server):
    """A gRPC server that drops other users' connections before a byte of HTTP/2 is said."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: grpclib's own signature
        super().__init__(*args, **kwargs)
        self.accepts = lambda peer: may_administer(peer_uid(peer), os.getuid())

    @property
    def serving(self) -> bool:
        return self._server is not None

    async def serve_on(self, listening: socket.socket) -> None:
        """Serves until `close`. The socket stays the caller's."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._protocol_factory, sock=listening)
        self._server_closed_fut = loop.create_future()

    def _protocol_factory(self) -> H2Protocol:
        return cast(H2Protocol, _Gate(super()._protocol_factory(), self.accepts))


class _Gate(asyncio.Protocol):
    """Passes everything on to `inner`, once the peer has been seen."""

    def __init__(self, inner: H2Protocol, accepts: Any) -> None:  # Any: a callable on sockets
        self._inner = inner
        self._accepts = accepts
        self._open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        try:
            self._open = self._accepts(transport.get_extra_info("socket"))
        except OSError as error:
            log.warning("the peer of an admin connection is unknown: %s", error)
        if self._open:
            self._inner.connection_made(transport)
        else:
            log.warning("refused an admin connection of another user")
            cast(asyncio.Transport, transport).abort()

    def data_received(self, data: bytes) -> None:
        if self._open:
            self._inner.data_received(data)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if self._open:
            self._inner.connection_lost(error)


def _clear_stale(path: Path) -> None:
    """Removes a socket file nobody answers on; raises SocketInUse when somebody does."""
    if not path.exists() and not path.is_symlink():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise SocketInUse(f"{path} cannot be used: {error.strerror or error}") from error
    raise SocketInUse(f"another process answers on {path}")
