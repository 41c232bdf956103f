"""The way to a host of a group: TCP to its `swiftlmd join`, or ssh, which starts one for a visit.

Written `HOST:PORT` or `ssh:NAME`. What is said on it is the same.
"""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from swiftlm_engine.cluster.link import LinkLost, Stranger

BY_SSH = "ssh:"
# ssh must fail rather than ask, and notice a dead network by itself.
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5")
_START_S = 40.0  # until who was started through ssh says its first word
_END_S = 5.0


class Unreachable(LinkLost):
    """Nobody listens where the agent should be, or ssh leads to none."""


class LocalNetworkDenied(Unreachable):
    """macOS 15 and later keep a launchd agent from other machines until its user allows it."""


_MACOS_NO_ROUTE = 65  # EHOSTUNREACH there


def _unreachable(reason: str, error: OSError | None = None) -> Unreachable:
    """What macOS forbids looks like a host that is not there."""
    no_route = error.errno == _MACOS_NO_ROUTE if error else "No route to host" in reason
    if sys.platform == "darwin" and no_route:
        return LocalNetworkDenied(reason)
    return Unreachable(reason)


@contextmanager
def reaching(agent: str, timeout_s: float) -> Iterator[socket.socket]:
    """A connection for the block. Raises Unreachable, also for an end that ssh explains."""
    if agent.startswith(BY_SSH):
        with _through_ssh(agent.removeprefix(BY_SSH)) as connection:
            yield connection
        return
    host, _, port = agent.rpartition(":")
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
    except OSError as error:
        raise _unreachable(
            f"does not answer at {agent}: {error.strerror or error}", error
        ) from error
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


def lend_command() -> list[str]:
    """The installation is at the same place on every host that ssh reaches."""
    isolated = "-I" if sys.flags.isolated else "-P"
    return [sys.executable, isolated, "-X", "utf8", "-m", "swiftlmd", "join", "--stdio"]


@contextmanager
def _through_ssh(name: str) -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as said:
        with theirs:
            command = [*SSH, "--", name, shlex.join(lend_command())]
            try:
                child = subprocess.Popen(
                    command, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=said
                )
            except OSError as error:
                raise Unreachable(f"cannot be reached: ssh cannot be started: {error}") from error
        ours.settimeout(_START_S)
        try:
            yield ours
        except Stranger:
            raise
        except LinkLost as error:
            if reason := _reason(child, said):
                raise _unreachable(f"cannot be reached: `ssh {name}` {reason}") from error
            raise
        finally:
            ours.close()
            child.kill()
            child.wait()


def _reason(child: subprocess.Popen[bytes], said: IO[bytes]) -> str:
    """Why ssh, or what it started, ended by itself; nothing if it did not."""
    try:
        code = child.wait(_END_S)
    except subprocess.TimeoutExpired:
        return ""
    if code == 0:
        return ""
    said.seek(0)
    lines = said.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    return f"ended with code {code}: {last}"
