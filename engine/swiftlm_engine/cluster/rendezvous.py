"""How a group comes together: rank 0 starts the others, and lets in who proves to be one of them.

Each caller is greeted on a thread of its own: a stranger costs the ranks no time.
"""

from __future__ import annotations

import logging
import queue
import select
import socket
import subprocess
import threading
import time

from swiftlm_engine.cluster.group import Group
from swiftlm_engine.cluster.launch import last_words, start_follower
from swiftlm_engine.cluster.leader import START_S, Follower, Leader
from swiftlm_engine.cluster.link import GREETING_S, MAX_RANKS, Link, LinkLost, Message, read_secret
from swiftlm_engine.messages import EngineFault, FaultKind

log = logging.getLogger(__name__)

_LOOK_S = 0.1


def gather(group: Group, version: str) -> Leader:
    """Starts every follower and waits for it; raises `EngineFault`, leaving no process."""
    children: list[subprocess.Popen[bytes]] = []
    ranks: dict[int, Follower] = {}
    try:
        door = Door(group, read_secret(group.secret_file), version)
        with _listening(group.address) as listener:
            address = f"{group.address}:{listener.getsockname()[1]}"
            for rank in range(1, group.size):
                children.append(start_follower(group, rank, address, version))
            until = time.monotonic() + START_S
            while len(ranks) < group.size - 1:
                _must_run(group, children)
                if time.monotonic() > until:
                    raise LinkLost(f"{_absent(group, ranks)} not there after {START_S:g} s")
                door.look(listener, ranks)
    except (LinkLost, OSError) as error:
        Leader(group, list(ranks.values()), children).close()
        raise EngineFault(FaultKind.UNSUPPORTED, f"the group cannot start: {error}") from error
    return Leader(group, [ranks[rank] for rank in sorted(ranks)], children)


class Door:
    """Where ranks arrive. `look` is for one thread; the greetings run beside it."""

    def __init__(self, group: Group, secret: bytes, version: str) -> None:
        self._group = group
        self._secret = secret
        self._version = version
        self._seats = threading.BoundedSemaphore(2 * MAX_RANKS)
        self._greeted: queue.SimpleQueue[tuple[Link, Message]] = queue.SimpleQueue()

    def look(self, listener: socket.socket, ranks: dict[int, Follower]) -> None:
        """Takes in who has come, after a moment at most. Raises LinkLost for another version."""
        if select.select([listener], [], [], _LOOK_S)[0]:
            self._receive(listener.accept()[0])
        while not self._greeted.empty():
            link, hello = self._greeted.get()
            follower = self._follower(link, hello)
            if follower is None or follower.rank in ranks:
                log.warning("a peer that knows the secret is not a rank of this group")
                link.close()
            else:
                ranks[follower.rank] = follower

    def _receive(self, connection: socket.socket) -> None:
        if not self._seats.acquire(blocking=False):
            connection.close()
            return
        threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        link = Link(connection)
        try:
            link.set_timeout(GREETING_S)
            link.greet_follower(self._secret)
            self._greeted.put((link, link.receive()))
        except LinkLost as error:
            log.warning("a connection to the group was refused: it %s", error)
            link.close()
        finally:
            self._seats.release()

    def _follower(self, link: Link, hello: Message) -> Follower | None:
        try:
            rank, memory = int(hello["rank"]), int(hello["memory"])
            version, ring = str(hello["version"]), str(hello["ring"])
            device = str(hello.get("device", ""))  # no other version may fail for lack of it
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        if not 0 < rank < self._group.size:
            return None
        host = self._group.hosts[rank]
        if version != self._version:
            raise LinkLost(
                f"rank {rank} on {host} runs {version}, this machine {self._version}; "
                "install the same version on both"
            )
        return Follower(rank, host, link, ring, memory, queue.SimpleQueue(), device)


def _listening(address: str) -> socket.socket:
    try:
        return socket.create_server((address, 0), backlog=2 * MAX_RANKS)
    except OSError as error:
        why = error.strerror or error
        raise LinkLost(
            f"this machine cannot listen at `cluster.address` {address}: {why}; give it the "
            "IPv4 address at which the other hosts reach it"
        ) from error


def _must_run(group: Group, children: list[subprocess.Popen[bytes]]) -> None:
    for rank, child in enumerate(children, start=1):
        if child.poll() is not None:
            raise LinkLost(f"rank {rank} on {group.hosts[rank]} {last_words(child)}")


def _absent(group: Group, ranks: dict[int, Follower]) -> str:
    absent = [rank for rank in range(1, group.size) if rank not in ranks]
    return ", ".join(f"rank {rank} on {group.hosts[rank]}" for rank in absent) + (
        " is" if len(absent) == 1 else " are"
    )
