"""Whether a model would run on this machine, and how: the plan's verdict, or one by its size."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from swiftlm_engine.brain.facts import ModelFilesError, read_model
from swiftlm_engine.brain.plan import (
    BadPlanRequest,
    Covers,
    MachineLimits,
    Plan,
    PlanRequest,
    Strategy,
    make_plan,
)

_TIGHT = 0.85  # of what is available; above it little is left for other programs
_ESTIMATED_OVERHEAD = 0.15  # KV, scratch and the process, where no plan can be made
_ESTIMATED_LEAST = 600_000_000


class FitVerdict(StrEnum):
    FITS = "fits"
    TIGHT = "tight"  # runs with little room, or with a smaller context than it could have
    STREAMS = "streams"  # its experts come from the disk: slower
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


def of_folder(folder: Path, request: PlanRequest, machine: MachineLimits) -> Fit:
    """By the plan that a load would follow; the folder may be an outline. Reads headers only."""
    try:
        return of_plan(make_plan(read_model(folder), request, machine))
    except (ModelFilesError, BadPlanRequest) as error:
        return Fit(FitVerdict.UNKNOWN, 0, 0, detail=str(error))


def of_plan(plan: Plan) -> Fit:
    bounds = plan.speed.decode
    return Fit(
        _verdict(plan),
        plan.needed_bytes,
        plan.available_bytes,
        context=0 if plan.refused else plan.settings.context,
        decode_tokens_s=(0.0, 0.0) if plan.refused else (bounds.low, bounds.high),
        detail=plan.summary,
    )


def of_size(size_bytes: int, machine: MachineLimits, budget_bytes: int | None = None) -> Fit:
    """For a model of which nothing but its size is known."""
    if size_bytes <= 0:
        return Fit(FitVerdict.UNKNOWN, 0, 0, estimated=True)
    sums = [lim for lim in machine.limits(budget_bytes) if lim.covers is not Covers.BUFFER]
    available = min((limit.bytes for limit in sums), default=machine.ram_bytes)
    needed = size_bytes + max(int(size_bytes * _ESTIMATED_OVERHEAD), _ESTIMATED_LEAST)
    if needed > available:
        verdict = FitVerdict.TOO_LARGE
    else:
        verdict = FitVerdict.TIGHT if needed > available * _TIGHT else FitVerdict.FITS
    return Fit(verdict, needed, available, detail="estimated from the size", estimated=True)


def _verdict(plan: Plan) -> FitVerdict:
    if plan.refused:
        return FitVerdict.TOO_LARGE
    if plan.strategy is Strategy.STREAMED:
        return FitVerdict.STREAMS
    close = plan.needed_bytes > plan.available_bytes * _TIGHT
    return FitVerdict.TIGHT if close or plan.auto_reduced else FitVerdict.FITS
