"""A leader's visit to the agent of a host: it proves itself, asks, and leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from swiftlm_engine.cluster.link import Link, LinkLost
from swiftlm_engine.cluster.transport import reaching
from swiftlmd.hosts.fetching import Wish
from swiftlmd.hosts.link_speed import LinkMeasure, measure_link
from swiftlmd.hosts.report import HostReport, from_message
from swiftlmd.hosts.transfer import follow_fetch
from swiftlmd.store.types import PullProgress

CONNECT_S = 5.0
ANSWER_S = 30.0  # a host may have many models to read the headers of


class Visit:
    """Blocking; every call raises LinkLost. Made by `visiting`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def report(self) -> HostReport:
        self._link.send({"do": "report"})
        return from_message(self._link.receive())

    def found(self, fingerprints: Sequence[str]) -> dict[str, frozenset[int] | None]:
        """Of these models those that are on the host: which layers, or None for all."""
        self._link.send({"do": "find", "fingerprints": list(fingerprints)})
        found = self._link.receive().get("found")
        if not isinstance(found, dict):  # another version, which the report tells
            return {}
        try:
            return {mark: None if held is None else frozenset(held) for mark, held in found.items()}
        except TypeError as error:
            raise LinkLost(f"sent no list of models ({error})") from error

    def fetch(self, wish: Wish) -> Iterator[PullProgress]:
        """Raises PullFailed with the host's words."""
        return follow_fetch(self._link, wish)

    def measure(self) -> LinkMeasure:
        return measure_link(self._link)


@contextmanager
def visiting(agent: str, secret: bytes) -> Iterator[Visit]:
    """Raises Unreachable, Stranger (the secrets differ) or LinkLost."""
    with reaching(agent, CONNECT_S) as connection, Link(connection) as link:
        link.greet_agent(secret)
        link.set_timeout(ANSWER_S)
        yield Visit(link)
