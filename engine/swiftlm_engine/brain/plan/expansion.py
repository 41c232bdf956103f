"""Which quantized weights a model holds as float32 on the CPU back end, and what that takes.

MLX's products with quantized weights run at 2 to 5 GFLOP/s on a CPU, those of float32 as fast as
its BLAS: a prompt is ten to fifty times faster, decode up to twice (docs/benchmarks.md). The
numbers are the same, only their sums are rounded in another order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from swiftlm_engine.brain.facts import ModelFacts, Packed, Sublayer
from swiftlm_engine.brain.plan.machine import Accelerator, gigabytes

# What an expanded model may take of the budget unless it was asked for.
AUTO_SHARE = 0.25


class CpuWeights(StrEnum):
    """`engine.cpu_weights`."""

    AUTO = "auto"
    EXPAND = "expand"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Expansion:
    """The head, and the attention and the MLP of the first so many layers."""

    head: bool
    attention_layers: int
    mlp_layers: int
    expanded_bytes: int  # what these take as float32
    added_bytes: int  # and how much more than before that is
    whole: bool  # nothing stays packed
    beside_experts: bool = False  # which always do

    @property
    def note(self) -> str:
        if self.whole and self.beside_experts:
            return f"all but the experts expanded to float32: {gigabytes(self.expanded_bytes)}"
        if self.whole:
            return f"expanded to float32: {gigabytes(self.expanded_bytes)}"
        parts = ["the head"] if self.head else []
        parts += [
            f"{name} of {count} layers"
            for name, count in (("attention", self.attention_layers), ("MLP", self.mlp_layers))
            if count
        ]
        return f"{', '.join(parts)} expanded to float32: {gigabytes(self.expanded_bytes)}"


def expandable(facts: ModelFacts, accelerator: Accelerator, dtype: str | None) -> bool:
    """Only float32 goes through a BLAS; elsewhere quantized products are the fast ones."""
    cpu = accelerator is Accelerator.CPU
    return cpu and (dtype or facts.dtype) == "float32" and bool(facts.weights.packed)


def expand_all(facts: ModelFacts) -> Expansion:
    return _expansion(list(facts.weights.packed), facts)


def expand_within(facts: ModelFacts, added_bytes: int) -> Expansion | None:
    """As many blocks as fit into `added_bytes` more, those first that gain the most per byte.

    Measured per MB that it adds (docs/benchmarks.md), attention saves a little more than the MLP;
    the head is one large product for every token.
    """
    taken: list[Packed] = []
    for group in _groups(facts):
        cost = sum(block.added_bytes for block in group)
        if cost > added_bytes:
            break
        added_bytes -= cost
        taken += group
    return _expansion(taken, facts) if taken else None


def _groups(facts: ModelFacts) -> Iterator[list[Packed]]:
    """What is expanded together, in the order in which it is."""
    packed = facts.weights.packed
    for block in Sublayer:
        layers = sorted({p.layer for p in packed if p.block is block}, key=lambda n: n or 0)
        for layer in layers:
            yield [p for p in packed if p.block is block and p.layer == layer]


def _expansion(taken: list[Packed], facts: ModelFacts) -> Expansion:
    def behind(block: Sublayer) -> int:
        return max(((p.layer or 0) + 1 for p in taken if p.block is block), default=0)

    return Expansion(
        head=any(p.block is Sublayer.ENDS for p in taken),
        attention_layers=behind(Sublayer.ATTENTION),
        mlp_layers=behind(Sublayer.MLP),
        expanded_bytes=sum(p.expanded_bytes for p in taken),
        added_bytes=sum(p.added_bytes for p in taken),
        whole=len(taken) == len(facts.weights.packed),
        beside_experts=facts.moe,
    )
