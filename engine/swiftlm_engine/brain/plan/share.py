"""The facts of what one rank of a group holds, so that its plan is made like any other.

A pipeline's rank holds some layers whole, a tensor-parallel one an equal part of each. What
belongs to no layer (embedding, head, last norm) is on every tensor-parallel rank, and of a pipeline
on the first, which leads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from swiftlm_engine.brain.facts import (
    Amount,
    Layer,
    LayerKind,
    ModelFacts,
    ModelShape,
    WeightPart,
    Weights,
)


class Split(StrEnum):
    TENSOR = "tensor"
    PIPELINE = "pipeline"


@dataclass(frozen=True, slots=True)
class Share:
    """`parts`: into how many equal parts each layer is cut; 1 in a pipeline."""

    split: Split
    layers: range
    parts: int = 1

    @property
    def ends(self) -> bool:
        """Whether the rank holds what belongs to no layer."""
        return self.split is Split.TENSOR or self.layers.start == 0


def share_facts(facts: ModelFacts, share: Share) -> ModelFacts:
    """What `read_model` would say if the rank's share were the whole model."""
    layers = tuple(_layer(facts.layers[i], share.parts) for i in share.layers)
    return replace(
        facts,
        layers=layers,
        shape=_shape(facts.shape, share.parts),
        weights=_weights(facts.weights, share),
    )


def _shape(shape: ModelShape, parts: int) -> ModelShape:
    return replace(
        shape,
        num_attention_heads=max(1, shape.num_attention_heads // parts),
        num_kv_heads=max(1, shape.num_kv_heads // parts),
        intermediate_size=max(1, shape.intermediate_size // parts),
        expert_size=max(1, shape.expert_size // parts),
    )


def _layer(layer: Layer, parts: int) -> Layer:
    """Every rank caches the whole latent of MLA: it has no heads."""
    stores = tuple(
        s if s.kind is LayerKind.MLA else replace(s, heads=max(1, s.heads // parts))
        for s in layer.stores
    )
    return replace(layer, stores=stores)


def _weights(weights: Weights, share: Share) -> Weights:
    # Cut into equal parts, a layer may have any number of caches; else it has one.
    own = share.layers if share.split is Split.PIPELINE else range(len(weights.layers))
    layers = tuple(weights.layers[number].split(share.parts) for number in own)
    held = sum(layers, Amount())
    experts = tuple(
        replace(e, amount=e.amount.split(share.parts)) for e in weights.experts if e.layer in own
    )
    in_experts = sum((e.amount for e in experts), Amount())
    outside = _less(
        weights.parts[WeightPart.DENSE],
        _less(sum(weights.layers, Amount()), sum((e.amount for e in weights.experts), Amount())),
    )
    parts = dict(weights.parts) if share.ends else dict.fromkeys(weights.parts, Amount())
    parts[WeightPart.DENSE] = _less(held, in_experts) + (outside if share.ends else Amount())
    parts[WeightPart.EXPERTS] = in_experts
    return replace(
        weights,
        parts=parts,
        experts=experts,
        layers=layers,
        largest_layer_bytes=-(-weights.largest_layer_bytes // share.parts),
    )


def _less(amount: Amount, taken: Amount) -> Amount:
    return Amount(
        max(0, amount.fixed_bytes - taken.fixed_bytes),
        max(0, amount.floats - taken.floats),
        max(0, amount.float_bytes - taken.float_bytes),
        max(0, amount.weights - taken.weights),
    )
