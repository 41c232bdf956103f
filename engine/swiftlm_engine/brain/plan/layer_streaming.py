"""Which layers of a dense model stay in memory when the others are read from disk for every step.

Layers are asked for in a fixed cycle, so the most recent one is the last that is needed again: what
fits stays for good, spread evenly so that a read has a resident layer's time to finish in, and the
others pass through two banks per kind, one read while the other computes. A kind whose layers never
follow each other needs one: it is read while a layer of another kind computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from swiftlm_engine.brain.facts import Amount, ModelFacts

BANKS = 2
# Models of these families read the parts of a layer and never call it, so that nothing can be
# done around its call: no streaming, no split. A load finds out by a trial; a test compares both.
NEVER_CALLED = frozenset({"iquestloopcoder"})


@dataclass(frozen=True, slots=True)
class LayerSize:
    """Bytes of one layer. Layers of the same kind have the same shapes and can share a bank."""

    bytes: int
    kind: str = ""
    disk_bytes: int = 0  # where the checkpoint's floats are not those in memory; 0 = the same


@dataclass(frozen=True, slots=True)
class LayerPlacement:
    streamed: tuple[int, ...]
    resident_bytes: int
    bank_bytes: int
    bytes_per_step: int  # read from disk for one decoded token, or for one chunk of a prompt

    @property
    def held_bytes(self) -> int:
        return self.resident_bytes + self.bank_bytes


def calls_layers(facts: ModelFacts) -> bool:
    return facts.model_type not in NEVER_CALLED


def layer_sizes(facts: ModelFacts, itemsize: int | None) -> list[LayerSize]:
    """Of a checkpoint, from its headers; `itemsize` is that of floats which a load casts.

    Experts that a load has to transpose or rename are no longer what lies in the file: they stay in
    memory, and no layer is priced with them.
    """
    weights = facts.weights
    changed = {}
    if weights.unreadable_expert:
        changed = {experts.layer: experts.amount for experts in weights.experts}

    def passing(number: int, itemsize: int | None) -> int:
        kept = changed.get(number, Amount())
        return weights.layers[number].bytes_as(itemsize) - kept.bytes_as(itemsize)

    return [
        LayerSize(passing(number, itemsize), disk_bytes=passing(number, None))
        for number in range(len(weights.layers))
    ]


def place_layers(
    layers: Sequence[LayerSize], room_bytes: int, *, must_stream: bool = False
) -> LayerPlacement:
    """Spend `room_bytes` on resident layers; without room for the least, the least (`held_bytes`).

    `must_stream`: where all of them would fit, half of them stay on disk all the same, or as many
    more as it takes to hold less than all. Decode then runs at most at disk speed /
    `bytes_per_step` tokens per second.
    """
    all_bytes = sum(layer.bytes for layer in layers)
    whole = all_bytes <= room_bytes
    if whole and not must_stream:
        return _placed(layers, ())
    counts = Counter(_kind(layer) for layer in layers)
    # Two banks would hold all layers of a rare kind.
    common = [i for i, layer in enumerate(layers) if counts[_kind(layer)] > BANKS]
    if whole:
        numbers = range(len(common) // 2, len(common) + 1)
        tried = (_placed(layers, _spread(common, number)) for number in numbers)
        return next((one for one in tried if one.held_bytes < all_bytes), _placed(layers, ()))
    for number in range(1, len(common) + 1):
        placement = _placed(layers, _spread(common, number))
        if placement.held_bytes <= room_bytes:
            return placement
    return _placed(layers, tuple(common))


def _placed(layers: Sequence[LayerSize], streamed: tuple[int, ...]) -> LayerPlacement:
    resident = sum(layer.bytes for i, layer in enumerate(layers) if i not in streamed)
    num_banks = banks_by_kind([_kind(layers[i]) for i in streamed])
    banks = {_kind(layers[i]): num_banks[_kind(layers[i])] * layers[i].bytes for i in streamed}
    read = sum(layers[i].disk_bytes or layers[i].bytes for i in streamed)
    return LayerPlacement(streamed, resident, sum(banks.values()), read)


def banks_by_kind(kinds: Sequence[str]) -> dict[str, int]:
    """`kinds` are those of the streamed layers in their order; the first follows the last."""
    return {
        kind: BANKS if any(pair == (kind, kind) for pair in _neighbours(kinds)) else 1
        for kind in dict.fromkeys(kinds)
    }


def _neighbours(kinds: Sequence[str]) -> list[tuple[str, str]]:
    return [(kind, kinds[(place + 1) % len(kinds)]) for place, kind in enumerate(kinds)]


def _spread(indices: Sequence[int], number: int) -> tuple[int, ...]:
    return tuple(indices[place * len(indices) // number] for place in range(number))


def _kind(layer: LayerSize) -> str:
    return layer.kind or str(layer.bytes)
