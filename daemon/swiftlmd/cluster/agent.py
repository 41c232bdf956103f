"""The agent of a host that lends itself to a group: it answers the group's leader, and nobody else.

A visitor proves first that it holds the group's secret. It may then ask what this host is and has,
measure the link, have a share of a model fetched from this host's hub and a rank started; nothing
else, and no path or command comes over the wire.
A rank ends with the connection that asked for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swiftlm_engine.brain.plan.rank_files import held_layers
from swiftlm_engine.cluster.link import GREETING_S, MAX_RANKS, Link, LinkLost, Message, read_secret
from swiftlm_proto.version import version
from swiftlmd.engines.process import MAX_LOG_BYTES, shorten, tail_of
from swiftlmd.hosts.link_speed import echo
from swiftlmd.hosts.report import HostReport, to_message
from swiftlmd.hosts.transfer import Fetch, tell_fetch

log = logging.getLogger(__name__)

MAX_VISITORS = 8
MAX_STRANGERS, MAX_STRANGERS_OF_ONE = 128, 32  # that greet at a time, in all and of one address
IDLE_S = 60.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Lent:
    """What this host answers with; `models` are by their fingerprints, read anew each time."""

    secret_file: Path
    logs: Path
    report: Callable[[], HostReport]
    models: Callable[[], Mapping[str, Path]]
    fetch: Fetch
    engine_command: Sequence[str]
    engine_environment: Mapping[str, str]


class Doorstep:
    """Connections that have proven nothing yet. A crowd costs the longest there its place, and
    never the newcomer: who holds the secret has shown it long before.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the list alone
        self._waiting: list[tuple[socket.socket, str]] = []

    def enter(self, connection: socket.socket, host: str) -> None:
        with self._lock:
            self._waiting.append((connection, host))
            same = [place for place in self._waiting if place[1] == host]
            crowd = same if len(same) > MAX_STRANGERS_OF_ONE else self._waiting
            most = MAX_STRANGERS_OF_ONE if crowd is same else MAX_STRANGERS
            if len(crowd) <= most:
                return
            oldest = crowd[0]
            self._waiting.remove(oldest)
        log.warning("turned away host=%s: too many connections that prove nothing", oldest[1])
        with contextlib.suppress(OSError):  # its thread then reads the end, and closes it
            oldest[0].shutdown(socket.SHUT_RDWR)

    def leave(self, connection: socket.socket, host: str) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._waiting.remove((connection, host))


class Agent:
    """Blocking: `serve` accepts until the listener is closed; each visitor has a thread."""

    def __init__(self, lent: Lent) -> None:
        self._lent = lent
        self._doorstep = Doorstep()
        # Of visitors that have proven themselves. A rank under way takes none.
        self._seats = threading.BoundedSemaphore(MAX_VISITORS)

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, (host, *_) = listener.accept()
            except OSError as error:
                if listener.fileno() < 0:
                    return
                log.warning("a visitor was lost on the way in: %s", error)
                time.sleep(_POLL_S)  # it may be for lack of open files
                continue
            try:
                threading.Thread(target=self.receive, args=(connection, host), daemon=True).start()
            except RuntimeError as error:  # no more threads: the next one may get one
                log.warning("a visitor was turned away host=%s: %s", host, error)
                connection.close()

    def receive(self, connection: socket.socket, host: str) -> None:
        """One visit, from `host`; the root of what happens in it."""
        try:
            connection.settimeout(GREETING_S)
            with Link(connection) as link:
                if connection.family != socket.AF_UNIX:  # which ssh's visits come over
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._greet(link, connection, host)
                try:
                    link.set_timeout(IDLE_S)
                    start = self._answer(link, connection, host)
                finally:
                    self._seats.release()
                self._lend(link, connection, start)
        except LinkLost as error:
            log.info("visitor left host=%s: it %s", host, error)
        except OSError as error:  # of the connection itself, or of a log that cannot be written
            log.warning("visit ended host=%s: %s", host, error)
        except Exception:
            log.exception("visitor failed host=%s", host)

    def _greet(self, link: Link, connection: socket.socket, host: str) -> None:
        """On return the visitor has a seat."""
        seated = False

        def admit() -> str:
            nonlocal seated
            seated = self._seats.acquire(blocking=False)
            if not seated:
                log.warning("full host=%s: %d visitors are here already", host, MAX_VISITORS)
            return "" if seated else f"it serves {MAX_VISITORS} visitors already; try again"

        self._doorstep.enter(connection, host)
        try:
            # Read anew for each: a secret that was copied here later counts at once.
            link.greet_visitor(read_secret(self._lent.secret_file), admit)
        except BaseException:
            if seated:
                self._seats.release()
            raise
        finally:
            self._doorstep.leave(connection, host)

    def _answer(self, link: Link, connection: socket.socket, host: str) -> Message:
        """Until it asks for a rank: returns that."""
        while True:
            asked = link.receive()
            match asked.get("do"):
                case "report":
                    report = dataclasses.replace(self._lent.report(), visitor=host)
                    link.send(to_message(report))
                case "find":
                    link.send({"found": self._found(asked)})
                case "echo":
                    echo(link, int(asked["frames"]), int(asked["rounds"]))
                case "fetch":
                    asyncio.run(tell_fetch(link, asked, self._lent.fetch))
                case "start":
                    return asked
                case unknown:
                    raise LinkLost(f"asked '{unknown}', which this version does not know")

    def _found(self, asked: Message) -> dict[str, list[int] | None]:
        """Of each model that is here its layers, or None for all of it."""
        wanted, here = asked.get("fingerprints"), self._lent.models()
        marks = set(here) & set(wanted if isinstance(wanted, list) else ())
        return {mark: _layers(here[mark]) for mark in marks}

    def _lend(self, link: Link, connection: socket.socket, asked: Message) -> None:
        """One rank, until it ends or the leader goes."""
        if asked.get("version") != version():
            fault = f"it runs {version()}, its leader {asked.get('version')}; install one version"
            return link.send({"fault": fault})
        folder = self._lent.models().get(str(asked.get("fingerprint")))
        if folder is None:
            return link.send({"fault": "the model's files are not there"})
        rank = int(asked["rank"])
        if not 0 < rank < MAX_RANKS:
            raise LinkLost(f"asked for rank {rank}")
        output = self._lent.logs / f"engine-rank-{rank}.log"
        child = self._start(str(asked["leader"]), rank, folder, output)
        log.info("rank %d started pid=%d leader=%s", rank, child.pid, asked["leader"])
        try:
            link.send({"started": child.pid})
            _await_end(child, connection)
        finally:
            child.kill()
            code = child.wait()
            log.info("rank %d ended pid=%d code=%d", rank, child.pid, code)
        said = tail_of(output).strip().rpartition("\n")[2]
        link.send({"ended": code, "said": f"{said} ({output})"})

    def _start(self, leader: str, rank: int, folder: Path, output: Path) -> subprocess.Popen[bytes]:
        output.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shorten(output, MAX_LOG_BYTES)
        command = [
            *self._lent.engine_command,
            *(f"--join={leader}", f"--rank={rank}", "--folder", str(folder)),
            *("--secret-file", str(self._lent.secret_file), "--parent", str(os.getpid())),
        ]
        with open(output, "ab", opener=_private) as file:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=dict(self._lent.engine_environment),
            )


def _layers(folder: Path) -> list[int] | None:
    held = held_layers(folder)
    return None if held is None else sorted(held)


def _await_end(child: subprocess.Popen[bytes], connection: socket.socket) -> None:
    """Returns when the process ended, or the other end of the connection did."""
    while child.poll() is None:
        if select.select([connection], [], [], _POLL_S)[0]:
            return  # the leader says nothing more: this is its end


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
