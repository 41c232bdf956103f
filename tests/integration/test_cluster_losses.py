"""What a leader says of the ranks it loses."""

from __future__ import annotations

import queue
import socket
import threading
import time
from pathlib import Path

from swiftlm_engine.cluster.group import Group
from swiftlm_engine.cluster.leader import Follower, Leader
from swiftlm_engine.cluster.link import Link


class Child:
    """A rank on this machine, whose connection ends when it is killed."""

    def __init__(self, ends: list[socket.socket], rank: int) -> None:
        self._ends = ends
        self._rank = rank

    def kill(self) -> None:
        self._ends[self._rank - 1].close()

    def wait(self) -> None:
        """Until the leader's threads have noticed, but for the one that waits here."""
        alive = sum(end.fileno() >= 0 for end in self._ends)
        until = time.monotonic() + 5
        while listening() > alive + 1 and time.monotonic() < until:
            time.sleep(0.001)


def listening() -> int:
    return sum("_listen" in thread.name for thread in threading.enumerate())


def test_only_the_rank_that_was_lost_first_is_named():
    ends = [socket.socketpair() for _ in range(3)]
    group = Group(("localhost",) * 4, Path("secret"), lost_after_s=3600)
    followers = [
        Follower(rank, "localhost", Link(own), "", 0, queue.SimpleQueue())
        for rank, (own, _) in enumerate(ends, start=1)
    ]
    children = [Child([end for _, end in ends], rank) for rank in (1, 2, 3)]
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    Leader(group, followers, children).watch(told.put)
    children[1].kill()
    assert "rank 2 on localhost" in told.get(timeout=10)
    assert told.empty()
    for own, _ in ends:
        own.close()
