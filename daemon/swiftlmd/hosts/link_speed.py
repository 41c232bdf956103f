"""The link between two hosts, measured by a small transfer over TCP: rate and delay, with spread.

Each round sends frames there and gets as many back. One byte measures the delay; a large round is
what the link moves in about a tenth of a second, so that a slow link is not held up for long.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from swiftlm_engine.brain.calibration import Spread
from swiftlm_engine.brain.plan import LinkSpeed, Range
from swiftlm_engine.cluster.link import Link

ROUNDS = 7
_FRAME_BYTES = 256 << 10  # small enough that memory costs nothing beside the link
_MAX_FRAMES = 256
_MAX_ROUNDS = 100
_PINGS = 21
_ROUND_S = 0.1


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
    pings = _echoes(link, bytes(1), 1, _PINGS, clock)[1:]  # the first finds the other end asleep
    turn_s = statistics.median(pings)
    body = bytes(_FRAME_BYTES)
    first_s = max(1e-9, min(_echoes(link, body, 1, 3, clock)) - turn_s)
    frames = max(1, min(int(_ROUND_S / first_s), _MAX_FRAMES))
    rounds = _echoes(link, body, frames, ROUNDS, clock)
    rates = [2 * frames * _FRAME_BYTES / max(1e-9, taken - turn_s) for taken in rounds]
    return LinkMeasure(ROUNDS, _spread(rates), _spread([taken / 2 for taken in pings]))


def echo(link: Link, frames: int, rounds: int) -> None:
    """The other side: takes so many frames and gives as many back, so often. Raises LinkLost."""
    frames = max(1, min(frames, _MAX_FRAMES))
    for _ in range(min(rounds, _MAX_ROUNDS)):
        for _ in range(frames):
            body = link.receive_bytes(_FRAME_BYTES)
        for _ in range(frames):
            link.send_bytes(body)


def _echoes(
    link: Link, body: bytes, frames: int, rounds: int, clock: Callable[[], float]
) -> list[float]:
    """Seconds of each round."""
    link.send({"do": "echo", "frames": frames, "rounds": rounds})
    found = []
    for _ in range(rounds):
        started = clock()
        for _ in range(frames):
            link.send_bytes(body)
        for _ in range(frames):
            link.receive_bytes(_FRAME_BYTES)
        found.append(clock() - started)
    return found


def _spread(values: list[float]) -> Spread:
    """Without the outermost tenth on either side: one hiccup of a machine is not its link."""
    ordered, cut = sorted(values), len(values) // 10
    return Spread.of(ordered[cut : len(ordered) - cut])
