"""Whether a model would run on this machine, and how: the verdict of the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from swiftlm_engine.brain.facts import ModelFilesError
from swiftlm_engine.brain.ledger import EntryKind
from swiftlm_engine.brain.plan import BadPlanRequest, Plan, Strategy, auto_context

_TIGHT = 0.85  # of what is available; above it little is left for other programs


class FitVerdict(StrEnum):
    FITS = "fits"
    TIGHT = "tight"  # runs with little room, or with a smaller context than it could have
    STREAMS = "streams"  # its experts or layers come from the disk: slower
    TOO_LARGE = "too large"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Fit:
    verdict: FitVerdict
    needed_bytes: int
    available_bytes: int
    context: int = 0  # tokens that fit; 0 = not known
    decode_tokens_s: tuple[float, float] = (0.0, 0.0)  # predicted, from and to
    detail: str = ""
    estimated: bool = False  # by the size alone

    @property
    def runs(self) -> bool:
        return self.verdict in (FitVerdict.FITS, FitVerdict.TIGHT, FitVerdict.STREAMS)


def of_plan_by(make: Callable[[], Plan], *, estimated: bool = False) -> Fit:
    """Of the plan that a load would follow; a model that cannot be planned is unknown."""
    try:
        return of_plan(make(), estimated=estimated)
    except (ModelFilesError, BadPlanRequest) as error:
        return Fit(FitVerdict.UNKNOWN, 0, 0, detail=str(error))


def of_plan(plan: Plan, *, estimated: bool = False) -> Fit:
    bounds = plan.speed.decode
    return Fit(
        _verdict(plan),
        plan.needed_bytes,
        plan.available_bytes,
        context=0 if plan.refused else plan.settings.context,
        decode_tokens_s=(0.0, 0.0) if plan.refused else (bounds.low, bounds.high),
        detail=f"estimated from the size: {plan.summary}" if estimated else plan.summary,
        estimated=estimated,
    )


def _verdict(plan: Plan) -> FitVerdict:
    if plan.refused:
        return FitVerdict.TOO_LARGE
    if plan.strategy is Strategy.STREAMED:
        return FitVerdict.STREAMS
    # What `auto` spends on requests side by side goes first where room is short.
    parallel = plan.settings.parallel if plan.request.parallel is None else 1
    spare = plan.need.of(EntryKind.KV) * (parallel - 1) // parallel
    close = plan.needed_bytes - spare > plan.available_bytes * _TIGHT
    shorter = plan.request.context is None and plan.settings.context < auto_context(plan.facts)
    return FitVerdict.TIGHT if close or shorter else FitVerdict.FITS
