"""Which models of a list suit this machine best, by their planned fit: `models best`, the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from swiftlm_proto import messages as m
from swiftlmd.store.fit import FitVerdict

_RUNS = (FitVerdict.FITS, FitVerdict.TIGHT, FitVerdict.STREAMS)
# Tokens a second that a reader, and an agent that reads files, can live with.
_READABLE, _AGENT = 5.0, 10.0
_AGENT_CONTEXT = 32_768  # the first request of the largest agent, and room to work


def mark(models: Sequence[m.OfferedModel]) -> None:
    """Writes into `best_for` of the largest, the fastest and the one for agents. A purpose that
    no model serves marks none."""
    runs = [one for one in models if _fit(one).verdict in _RUNS and _speed(one) > 0]
    readable = [one for one in runs if _speed(one) >= _READABLE]
    agents = [
        one
        for one in runs
        if one.tools and _speed(one) >= _AGENT and _fit(one).context >= _AGENT_CONTEXT
    ]
    chosen = {
        "largest": max(readable, key=lambda one: (one.size_bytes, _speed(one)), default=None),
        "fastest": max(runs, key=lambda one: (_speed(one), one.size_bytes), default=None),
        "agents": max(agents, key=lambda one: (one.size_bytes, _speed(one)), default=None),
    }
    for purpose, model in chosen.items():
        if model is not None:
            model.best_for.append(purpose)


def _fit(model: m.OfferedModel) -> m.ModelFit:
    return model.fit if model.fit is not None else m.ModelFit()


def _speed(model: m.OfferedModel) -> float:
    """The middle of what is predicted."""
    fit = _fit(model)
    return math.sqrt(max(0.0, fit.decode_low) * max(0.0, fit.decode_high))
