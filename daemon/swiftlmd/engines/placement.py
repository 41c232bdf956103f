"""Where a model goes and what it costs, before anything is loaded: the planner's verdict.

Residency asks only this port; the arithmetic behind it is the plan of `swiftlm_engine.brain`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from swiftlm_proto import messages as m
from swiftlmd.config.settings import Settings
from swiftlmd.store.types import StoredModel

PriceRequest = Callable[[int, int], int]
"""Bytes that a request takes, of its prompt tokens and answer tokens."""


def free_of_charge(prompt_tokens: int, max_tokens: int) -> int:
    """The price where nothing is known."""
    return 0


def without_expansion(plan: str) -> str:
    """The JSON of a plan whose float32 weights were quantized again."""
    report = json.loads(plan or "{}")
    if not (expansion := report.get("cpu_weights")):
        return plan
    report["cpu_weights"] = None
    report["terms"] = [t for t in report["terms"] if t["note"] != expansion["held_as"]]
    for total in ("total_bytes", "needed_bytes"):
        report[total] -= expansion["added_bytes"]
    return json.dumps(report)


@dataclass(frozen=True, slots=True)
class RankLimits:
    """Of one rank's process, in bytes, as its share was planned."""

    memory: int
    buffers: int
    wired: int


@dataclass(frozen=True, slots=True)
class GroupPlacement:
    """How the ranks of a group split a model: `tensor` or `pipeline`, and then each's layers."""

    split: str
    layers: tuple[range, ...]
    fingerprint: str
    limits: tuple[RankLimits, ...] = ()


@dataclass(frozen=True, slots=True)
class OnHosts:
    """Bytes that models of groups hold on other hosts by their names, and that will come back."""

    held: Mapping[str, int] = field(default_factory=dict)
    returning: Mapping[str, int] = field(default_factory=dict)


NOTHING_ELSEWHERE = OnHosts()


@dataclass(frozen=True, slots=True)
class Placement:
    """One verdict. `request` is what the engine gets when the verdict is followed."""

    request: m.LoadRequest
    needed_bytes: int
    fits: bool
    refusal: str  # the sum in words, when it does not fit
    plan: str  # JSON, for status and `swiftlmctl plan`
    forced: bool = False
    expanded_bytes: int = 0  # of `needed_bytes`: what float32 weights take above quantized ones
    price_request: PriceRequest = free_of_charge
    environment: Mapping[str, str] = field(default_factory=dict)
    sampling: m.Sampling = field(default_factory=m.Sampling)  # where a request says nothing
    group: GroupPlacement | None = None
    elsewhere: Mapping[str, int] = field(default_factory=dict)  # what its ranks need, by host


class Planner(Protocol):
    """Prices models. Reads files, so it never runs on the event loop's own thread."""

    async def place(
        self,
        model: StoredModel,
        settings: Settings,
        *,
        held_bytes: int,
        returning_bytes: int,
        elsewhere: OnHosts = NOTHING_ELSEWHERE,
        force: bool = False,
    ) -> Placement:
        """The verdict on `model` while others hold `held_bytes` of the budget; forced ones fit.

        `returning_bytes` will come back to the machine before the load (models about to be
        evicted); `elsewhere` says the same of other hosts. Raises ServiceError when the model's
        files cannot be understood.
        """
