"""The link between two hosts, measured by a small transfer over TCP: rate and delay, with spread.

Each round sends a body there and gets it back. One byte measures the delay; the large body is as
much as the link moves in about a tenth of a second, so that a slow link is not held up for long.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from swiftlm_engine.brain.plan import LinkSpeed, Range
from swiftlm_engine.cluster.link import Link

MAX_BODY_BYTES = 32 << 20
MAX_ROUNDS = 100
ROUNDS = 7
_PINGS = 21
_MIN_BODY_BYTES = 64 << 10
_ROUND_S = 0.1


@dataclass(frozen=True, slots=True)
class Spread:
    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class LinkMeasure:
    """One way: bytes and seconds."""

    rounds: int
    bytes_s: Spread
    delay_s: Spread

    @property
    def speed(self) -> LinkSpeed:
        """For a plan: what was seen at worst and at best."""
        return LinkSpeed(
            Range(self.bytes_s.low, self.bytes_s.high), Range(self.delay_s.low, self.delay_s.high)
        )


def measure_link(link: Link, clock: Callable[[], float] = time.perf_counter) -> LinkMeasure:
    """The leader's side. Raises LinkLost."""
    pings = _echoes(link, 1, _PINGS, clock)[1:]  # the first finds the other end asleep
    turn_s = statistics.median(pings)
    warm_s = max(1e-9, min(_echoes(link, _MIN_BODY_BYTES, 3, clock)) - turn_s)
    wanted = int(_MIN_BODY_BYTES * _ROUND_S / warm_s)
    size = max(_MIN_BODY_BYTES, min(wanted, MAX_BODY_BYTES))
    rounds = _echoes(link, size, ROUNDS, clock)
    rates = [2 * size / max(1e-9, taken - turn_s) for taken in rounds]
    return LinkMeasure(ROUNDS, _spread(rates), _spread([taken / 2 for taken in pings]))


def echo(link: Link, rounds: int) -> None:
    """The other side: gives back what comes, so often. Raises LinkLost."""
    for _ in range(min(rounds, MAX_ROUNDS)):
        link.send_bytes(link.receive_bytes(MAX_BODY_BYTES))


def _echoes(link: Link, size: int, rounds: int, clock: Callable[[], float]) -> list[float]:
    """Seconds of each round."""
    link.send({"do": "echo", "rounds": rounds})
    body, found = bytes(size), []
    for _ in range(rounds):
        started = clock()
        link.send_bytes(body)
        link.receive_bytes(size)
        found.append(clock() - started)
    return found


def _spread(values: list[float]) -> Spread:
    return Spread(min(values), statistics.median(values), max(values))
