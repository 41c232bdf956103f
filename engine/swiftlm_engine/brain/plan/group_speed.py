"""How fast a model over several hosts will be: each rank's own speed, and what crosses the links.

A prediction from arithmetic and measured links; nothing here was measured on two machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swiftlm_engine.brain.plan.request import Settings
from swiftlm_engine.brain.plan.share import Split
from swiftlm_engine.brain.plan.speed import PredictedSpeed, Range

_SUMS_PER_LAYER = 2  # behind attention, and behind the feed-forward block


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """Between two hosts, one way."""

    bytes_s: Range
    delay_s: Range


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a token makes cross the links: its hidden state, how often the split demands."""

    hidden_bytes: int
    layers: int
    ranks: int
    link: LinkSpeed

    def per_token(self, split: Split, tokens: int, fast: bool) -> float:
        """Seconds of one token's share of a step of `tokens`."""
        rate = _end(self.link.bytes_s, fast)
        delay = _end(self.link.delay_s, not fast) / tokens
        if split is Split.PIPELINE:  # from rank to rank, and the result back
            return self.ranks * (delay + self.hidden_bytes / rate)
        hops = 2 * (self.ranks - 1)  # of a ring's sum, each with a part of the array
        one_sum = hops * (delay + self.hidden_bytes / self.ranks / rate)
        return _SUMS_PER_LAYER * self.layers * one_sum


def slowest(links: Sequence[LinkSpeed]) -> LinkSpeed:
    """A ring waits for its worst link. Between followers none is measured: they count as this."""
    return LinkSpeed(
        Range(min(x.bytes_s.low for x in links), min(x.bytes_s.high for x in links)),
        Range(max(x.delay_s.low for x in links), max(x.delay_s.high for x in links)),
    )


def group_speed(
    ranks: Sequence[PredictedSpeed], split: Split, settings: Settings, traffic: Traffic
) -> PredictedSpeed:
    """Of one sequence alone: tensor-parallel ranks compute at once, a pipeline's in turn."""

    def bound(speeds: Sequence[float], tokens: int, fast: bool) -> float:
        times = [1 / speed for speed in speeds]
        computed = max(times) if split is Split.TENSOR else sum(times)
        return 1 / (computed + traffic.per_token(split, tokens, fast))

    def bounds(found: Sequence[Range], tokens: int) -> Range:
        low, high = [x.low for x in found], [x.high for x in found]
        return Range(bound(low, tokens, False), bound(high, tokens, True))

    return PredictedSpeed(
        prefill=bounds([speed.prefill for speed in ranks], settings.prefill_chunk),
        decode=bounds([speed.decode for speed in ranks], 1),
        decode_full=bounds([speed.decode_full for speed in ranks], 1),
        measured=False,
    )


def _end(bounds: Range, high: bool) -> float:
    return bounds.high if high else bounds.low
