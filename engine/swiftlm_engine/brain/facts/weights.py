"""Where the bytes of a checkpoint go: resident, experts, looked up, or never loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class WeightPart(StrEnum):
    """What a tensor is to the plan. `UNUSED` tensors lie on disk and are never read."""

    DENSE = "dense"
    EMBEDDING = "embedding"
    LOOKED_UP = "looked_up"
    HEAD = "head"
    EXPERTS = "experts"
    VISION = "vision"
    UNUSED = "unused"


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes of a set of tensors. Floats are kept apart: a load in another dtype casts them."""

    fixed_bytes: int = 0
    floats: int = 0
    float_bytes: int = 0
    weights: int = 0

    def bytes_as(self, itemsize: int | None = None) -> int:
        """Bytes in memory when floats are cast to `itemsize` (None = as they are stored)."""
        floats = self.float_bytes if itemsize is None else self.floats * itemsize
        return self.fixed_bytes + floats

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.fixed_bytes + other.fixed_bytes,
            self.floats + other.floats,
            self.float_bytes + other.float_bytes,
            self.weights + other.weights,
        )

    def split(self, parts: int) -> Amount:
        """One of equal parts, rounded up."""
        return Amount(
            -(-self.fixed_bytes // parts),
            -(-self.floats // parts),
            -(-self.float_bytes // parts),
            -(-self.weights // parts),
        )


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of one layer; all layers of a model have the same number."""

    layer: int
    amount: Amount

    def record_bytes(self, num_experts: int, itemsize: int | None = None) -> int:
        """Bytes of one expert: what one miss reads."""
        return self.amount.bytes_as(itemsize) // num_experts


class Sublayer(StrEnum):
    """What a packed matrix belongs to, as far as it matters which to expand first."""

    ENDS = "head"  # of no layer: the head, and the embedding where it is the head
    ATTENTION = "attention"
    MLP = "mlp"


@dataclass(frozen=True, slots=True)
class Packed:
    """The quantized matrices of one block that every token is multiplied with, experts apart."""

    block: Sublayer
    layer: int | None
    amount: Amount

    @property
    def expanded_bytes(self) -> int:
        """As float32."""
        return 4 * self.amount.weights

    @property
    def added_bytes(self) -> int:
        """What the expanded block takes more than the packed one with its scales as float32."""
        return self.expanded_bytes - self.amount.bytes_as(4)


@dataclass(frozen=True, slots=True)
class Weights:
    """Where the bytes of a checkpoint go. Exact, from the headers."""

    parts: Mapping[WeightPart, Amount]
    experts: tuple[Experts, ...]
    layers: tuple[Amount, ...]  # of each layer, its experts included
    num_experts: int
    experts_per_token: int
    tied: bool
    largest_tensor_bytes: int
    largest_layer_bytes: int
    unreadable_expert: str = ""  # a tensor of experts that cannot be read one by one
    packed: tuple[Packed, ...] = ()  # by layers

    def part(self, part: WeightPart, itemsize: int | None = None) -> int:
        return self.parts.get(part, Amount()).bytes_as(itemsize)

    def resident_bytes(self, itemsize: int | None = None) -> int:
        """Everything a resident model keeps in memory."""
        return self.part(WeightPart.EXPERTS, itemsize) + self.shared_bytes(itemsize)

    def shared_bytes(self, itemsize: int | None = None) -> int:
        """What stays resident even when experts are streamed."""
        held = (WeightPart.DENSE, WeightPart.EMBEDDING, WeightPart.LOOKED_UP, WeightPart.HEAD)
        return sum(self.part(part, itemsize) for part in held)

    def active_bytes(self, itemsize: int | None = None) -> int:
        """Bytes of weights that one decoded token reads."""
        return self._active(lambda amount: amount.bytes_as(itemsize))

    @property
    def active_weights(self) -> int:
        return self._active(lambda amount: amount.weights)

    @property
    def total_weights(self) -> int:
        return sum(a.weights for p, a in self.parts.items() if p is not WeightPart.UNUSED)

    def _active(self, measure: Callable[[Amount], int]) -> int:
        def of(part: WeightPart) -> int:
            return measure(self.parts.get(part, Amount()))

        # A tied head reads the whole embedding; an untied embedding gives one row.
        head = of(WeightPart.EMBEDDING) if self.tied else of(WeightPart.HEAD)
        experts = of(WeightPart.EXPERTS) * self.experts_per_token // max(1, self.num_experts)
        return of(WeightPart.DENSE) + head + experts
