"""One daemon per installation, and one owner of the port, settled before anything is started.

The lock is the kernel's (flock): it goes with the process, however that ends. The port is never
moved: clients would be lost.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Instance:
    """The identity of one run of the daemon; `/health` shows it."""

    instance_id: str
    pid: int
    started_at: float  # seconds since the epoch
    version: str
    http: str  # host:port it was told to listen on
    https: str = ""  # the same for encrypted connections; empty = none


class AlreadyRunning(Exception):
    """Another daemon holds the lock."""

    def __init__(self, holder: Instance | None) -> None:
        who = "another swiftlmd"
        if holder is not None:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.started_at))
            who = f"swiftlmd {holder.version} (pid {holder.pid}, since {since})"
            who += f" on {holder.http}"
        super().__init__(f"{who} already serves this installation; this one leaves")


class PortBusy(Exception):
    """Somebody else listens on the port that is ours by configuration."""

    def __init__(self, address: str, holder: str) -> None:
        super().__init__(
            f"{address} is taken by {holder}; stop it, or choose another port with "
            f"`swiftlmctl config set http.port N`"
        )


class NoAddress(Exception):
    """The address that we are to listen on is not this machine's, or not yet."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(
            f"{host} (http.host) is not an address of this machine now ({reason}); connect its "
            f"network, or set another with `swiftlmctl config set http.host ADDRESS`"
        )


def this_instance(version: str, http: str, https: str = "") -> Instance:
    return Instance(uuid.uuid4().hex[:12], os.getpid(), time.time(), version, http, https)


@contextmanager
def sole_instance(lock_file: Path, instance: Instance) -> Iterator[None]:
    """Holds the lock while the block runs; raises AlreadyRunning, naming the holder."""
    lock_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(_holder(lock)) from None
        with contextlib.suppress(OSError):  # a full disk leaves the loser without our name
            os.ftruncate(lock, 0)
            os.pwrite(lock, json.dumps(asdict(instance)).encode(), 0)
        yield
    finally:
        os.close(lock)


def address(host: str, port: int) -> str:
    """host:port as it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind_port(host: str, port: int) -> socket.socket:
    """A socket that listens on host:port; raises PortBusy, NoAddress or OSError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # `localhost` has two addresses, and clients are told the first of IPv4.
        family, kind, protocol, _, place = min(found, key=lambda each: each[0] != socket.AF_INET)
    except socket.gaierror as error:
        raise NoAddress(host, error.strerror or str(error)) from error
    server = socket.socket(family, kind, protocol)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(place)
        server.listen(1024)
        server.setblocking(False)
    except OSError as error:
        server.close()
        if error.errno == errno.EADDRINUSE:
            raise PortBusy(address(host, port), port_holder(port)) from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise NoAddress(host, error.strerror or str(error)) from error
        raise
    return server


def port_holder(port: int) -> str:
    """Who listens on `port`, as far as this user may see."""
    for process in psutil.process_iter(["pid", "name", "uids"]):
        try:
            if process.info["uids"].real != os.getuid():
                continue
            connections = process.net_connections(kind="tcp")
        except (psutil.Error, AttributeError):
            continue
        for connection in connections:
            listens = connection.status == psutil.CONN_LISTEN
            if listens and connection.laddr and connection.laddr.port == port:
                return f"{process.info['name']} (pid {process.info['pid']})"
    return "a process of another user"


def _holder(lock: int) -> Instance | None:
    try:
        return Instance(**json.loads(os.pread(lock, 4096, 0)))
    except (ValueError, TypeError):
        return None  # it is just writing it, or an older version wrote it
