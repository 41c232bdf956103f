"""Which share of a model each rank of a group holds, and how a rank takes its own.

Equal parts of every layer where mlx-lm can cut the family so and the heads divide; else, or when
asked, a range of layers in proportion to each host's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.nn as nn

from swiftlm_engine.brain.facts import ModelFacts
from swiftlm_engine.brain.plan.group import split_layers
from swiftlm_engine.brain.plan.obstacles import pipeline_obstacle, tensor_obstacle
from swiftlm_engine.brain.plan.share import Share, Split
from swiftlm_engine.messages import EngineFault, FaultKind
from swiftlm_engine.split.pipeline import RingHop, SumHop, install


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's place: MLX's group, and what this rank holds of the model."""

    ring: Any  # mx.distributed.Group
    share: Share
    backend: str = "ring"  # of mx.distributed

    @property
    def note(self) -> str:
        """For `status`."""
        ranks = f"over {self.ring.size()} ranks"
        if self.share.split is Split.TENSOR:
            return f"tensor parallel {ranks}"
        layers = self.share.layers
        return f"pipeline {ranks}: layers {layers.start} to {layers.stop - 1} here"


def choose_shares(facts: ModelFacts, asked: Split | None, memories: Sequence[int]) -> list[Share]:
    """One per rank; `memories` are the bytes each has for the model, the leader's first.

    Raises `EngineFault` with what stands in the way of what was asked, or of both.
    """
    size, layers = len(memories), range(len(facts.layers))
    uncut = tensor_obstacle(facts, size)
    if asked is not Split.PIPELINE and not uncut:
        return [Share(Split.TENSOR, layers, size)] * size
    if asked is Split.TENSOR:
        raise EngineFault(FaultKind.UNSUPPORTED, f"{uncut}; split it as a pipeline")
    if obstacle := pipeline_obstacle(facts, size):
        why = "; ".join(filter(None, (uncut, obstacle)))
        raise EngineFault(FaultKind.UNSUPPORTED, f"{why}: load it on one machine")
    layer_bytes = [amount.bytes_as() for amount in facts.weights.layers]
    outside = facts.weights.resident_bytes() - sum(layer_bytes)  # embedding and head
    budgets = [max(1, memories[0] - outside), *memories[1:]]
    try:
        ranges = split_layers(layer_bytes, budgets)
    except ValueError as error:
        raise EngineFault(FaultKind.UNSUPPORTED, str(error)) from error
    return [Share(Split.PIPELINE, each) for each in ranges]


def encode_share(share: Share) -> dict[str, Any]:
    """As JSON of the control connection."""
    layers = [share.layers.start, share.layers.stop]
    return {"split": share.split, "layers": layers, "parts": share.parts}


def decode_share(fields: dict[str, Any]) -> Share:
    return Share(Split(fields["split"]), range(*fields["layers"]), fields["parts"])


def take_share(model: Any, place: Place) -> list[nn.Module]:
    """Leaves this rank its share, lazily; returns the modules whose weights it needs."""
    if place.share.split is Split.PIPELINE:
        own, ring = place.share.layers, place.ring
        if ring.rank() == ring.size() - 1 and own.stop != len(model.layers):
            message = f"the model has {len(model.layers)} layers, its files {own.stop}"
            raise EngineFault(FaultKind.UNSUPPORTED, message)
        return install(model, own, SumHop(ring) if place.backend == "nccl" else RingHop(ring))
    model.shard(place.ring)
    return [model]
