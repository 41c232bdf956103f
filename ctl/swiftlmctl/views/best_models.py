"""Which models of the catalogue are worth fetching for this machine, by their planned fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from swiftlm_proto import messages as m
from swiftlmctl import output

RUNS = ("fits", "tight", "streams")
# Tokens a second that a reader, and an agent that reads files, can live with.
READABLE, AGENT = 5.0, 10.0
AGENT_CONTEXT = 32_768  # the first request of the largest agent, and room to work


@dataclass(frozen=True, slots=True)
class Pick:
    best: str
    model: m.OfferedModel


def picks(found: Sequence[m.OfferedModel]) -> list[Pick]:
    """The largest, the fastest and the one for agents; what no model is good for is left out."""
    runs = [one for one in found if _fit(one).verdict in RUNS and _speed(one) > 0]
    readable = [one for one in runs if _speed(one) >= READABLE]
    agents = [
        one
        for one in runs
        if one.tools and _speed(one) >= AGENT and _fit(one).context >= AGENT_CONTEXT
    ]
    chosen = [
        ("largest", max(readable, key=lambda one: (one.size_bytes, _speed(one)), default=None)),
        ("fastest", max(runs, key=lambda one: (_speed(one), one.size_bytes), default=None)),
        ("agents", max(agents, key=lambda one: (one.size_bytes, _speed(one)), default=None)),
    ]
    return [Pick(best, model) for best, model in chosen if model is not None]


def table(found: Sequence[Pick]) -> output.Table:
    rows = []
    for pick in found:
        fit = _fit(pick.model)
        size = output.size_text(pick.model.size_bytes)
        speed = f"{fit.decode_low:.0f}-{fit.decode_high:.0f}"
        here = "yes" if pick.model.here else "no"
        rows.append((pick.best, pick.model.model, size, fit.verdict, speed, here))
    return output.Table(("best", "model", "size", "fit", "tok/s", "here"), tuple(rows))


def _fit(model: m.OfferedModel) -> m.ModelFit:
    return model.fit if model.fit is not None else m.ModelFit()


def _speed(model: m.OfferedModel) -> float:
    """The middle of what is predicted."""
    fit = _fit(model)
    return math.sqrt(max(0.0, fit.decode_low) * max(0.0, fit.decode_high))
