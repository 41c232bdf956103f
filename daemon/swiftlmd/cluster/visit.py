"""A leader's visit to the agent of a host: it proves itself, asks, and leaves."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from swiftlm_engine.cluster.link import Link, LinkLost
from swiftlmd.cluster.link_speed import LinkMeasure, measure_link
from swiftlmd.cluster.report import HostReport, from_message

CONNECT_S = 5.0
ANSWER_S = 30.0  # a host may have many models to read the headers of


class Unreachable(LinkLost):
    """Nobody listens where the agent should be."""


class Visit:
    """Blocking; every call raises LinkLost. Made by `visiting`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def own_host(self) -> str:
        """This machine's address, as the visited host sees it."""
        return self._link.own_host

    def report(self) -> HostReport:
        self._link.send({"do": "report"})
        return from_message(self._link.receive())

    def found(self, fingerprints: Sequence[str]) -> frozenset[str]:
        """Of these models' files, those that are on the host."""
        self._link.send({"do": "find", "fingerprints": list(fingerprints)})
        return frozenset(self._link.receive().get("found", ())) & frozenset(fingerprints)

    def measure(self) -> LinkMeasure:
        return measure_link(self._link)


@contextmanager
def visiting(agent: str, secret: bytes) -> Iterator[Visit]:
    """Raises Unreachable, Stranger (the secrets differ) or LinkLost."""
    host, _, port = agent.rpartition(":")
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), CONNECT_S)
    except OSError as error:
        raise Unreachable(f"nobody answers at {agent}: {error.strerror or error}") from error
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with Link(connection) as link:
        link.greet_agent(secret)
        link.set_timeout(ANSWER_S)
        yield Visit(link)
