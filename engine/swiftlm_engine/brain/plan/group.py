"""Which layers each host of a pipeline holds: contiguous ranges, by the memory that each has."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

_Cost = tuple[float, float]  # bytes beyond the budgets, then how far from proportional


def split_layers(
    layer_bytes: Sequence[int],
    host_budgets: Sequence[int],
    held: Sequence[frozenset[int] | None] = (),
) -> list[range]:
    """A range of layers for each host, in the order of the hosts; none is empty.

    No host gets more than its budget where that is possible at all; among those splits the one
    closest to proportional. `held`: the layers whose files a host has, None for all of them.
    Raises ValueError for fewer layers than hosts, a host without room, or files that do not do.
    """
    layers, hosts = len(layer_bytes), len(host_budgets)
    if not 1 <= hosts <= layers:
        raise ValueError(f"{layers} layers cannot be split over {hosts} hosts")
    if min(host_budgets) <= 0:
        raise ValueError("a host has no room for any layer")
    before = [0, *accumulate(layer_bytes)]
    # best[end] = the cheapest way for the hosts so far to hold layers 0 to end, and its ends.
    best: dict[int, tuple[_Cost, tuple[int, ...]]] = {0: ((0.0, 0.0), ())}
    for host, budget in enumerate(host_budgets):
        left = hosts - host - 1
        ends = [layers] if not left else range(host + 1, layers - left + 1)
        files = held[host] if held else None
        ways: dict[int, list[tuple[_Cost, tuple[int, ...]]]] = {}
        for end in ends:
            for start, (cost, cuts) in best.items():
                if start < end and (files is None or files.issuperset(range(start, end))):
                    cost_here = _add(cost, before[end] - before[start], budget)
                    ways.setdefault(end, []).append((cost_here, (*cuts, end)))
        best = {end: min(found) for end, found in ways.items()}
    if layers not in best:
        raise ValueError("the files on the hosts do not match any layer split")
    cuts = best[layers][1]
    return [range(first, last) for first, last in zip((0, *cuts), cuts, strict=False)]


def _add(cost: _Cost, held: int, budget: int) -> _Cost:
    """The sum of squares over budgets is least where every host is filled to the same share."""
    return cost[0] + max(0, held - budget), cost[1] + held * held / budget
