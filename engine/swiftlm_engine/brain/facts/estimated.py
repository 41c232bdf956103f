"""Facts of a model of which only its size and a few numbers of its name are known.

The planner weighs them like those of a folder, so that a model which is not here gets its verdict
by the same arithmetic: a mixture of experts larger than memory streams, here or on the hub. Width,
depth and KV are those of published models of about that size.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from swiftlm_engine.brain.facts.expert_layout import EXPERT_MODULES
from swiftlm_engine.brain.facts.layers import KvStore, Layer, LayerKind
from swiftlm_engine.brain.facts.model import ModelFacts, ModelShape
from swiftlm_engine.brain.facts.quantization import Packing, Quantisation
from swiftlm_engine.brain.facts.weights import Amount, Experts, WeightPart, Weights


@dataclass(frozen=True, slots=True)
class _Shape:
    billions: float  # of weights
    depth: int
    hidden: int
    inter: int  # of the MLP, or of one expert
    heads: int
    kv_heads: int
    experts: int = 0
    experts_per_token: int = 0


# Qwen3 and Llama 3; OLMoE, Qwen3, gpt-oss, Qwen3, Qwen3.5 and DeepSeek V3.
_DENSE = (
    _Shape(0.14, 30, 576, 1536, 9, 3),
    _Shape(0.6, 28, 1024, 3072, 16, 8),
    _Shape(1.7, 28, 2048, 6144, 16, 8),
    _Shape(4.0, 36, 2560, 9728, 32, 8),
    _Shape(8.2, 36, 4096, 12288, 32, 8),
    _Shape(14.8, 40, 5120, 17408, 40, 8),
    _Shape(32.8, 64, 5120, 25600, 64, 8),
    _Shape(70.6, 80, 8192, 28672, 64, 8),
    _Shape(405.0, 126, 16384, 53248, 128, 8),
)
_MIXTURES = (
    _Shape(7.0, 16, 2048, 1024, 16, 16, 64, 8),
    _Shape(30.5, 48, 2048, 768, 32, 4, 128, 8),
    _Shape(117.0, 36, 2880, 2880, 64, 8, 128, 4),
    _Shape(235.0, 94, 4096, 1536, 64, 4, 128, 8),
    _Shape(397.0, 60, 4096, 1024, 32, 2, 512, 10),
    _Shape(671.0, 61, 7168, 2048, 64, 8, 256, 8),
)
_HEAD_SIZE = 128
_VOCABULARY = 151_936
_ACTIVE_SHARE = 0.1  # of a mixture that does not say how much of it a token uses
_BITS = 4.5  # of four with their scales, where nobody says
_ACTIVE = re.compile(r"(?<![a-z0-9])a(\d+(?:\.\d+)?)b(?![a-z0-9])", re.IGNORECASE)
_TOTAL = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)b(?![a-z0-9])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SizeFacts:
    """`active_share`: the part of the weights that one token uses; 1 = all of them."""

    size_bytes: int
    active_share: float = 1.0
    max_context: int | None = None
    bits_per_weight: float = _BITS
    model_type: str = ""


def active_share(name: str, model_type: str) -> float:
    """What a name such as `Qwen3-30B-A3B` says; else by whether the family is a mixture."""
    total, active = _TOTAL.search(name), _ACTIVE.search(name)
    if total and active and 0 < float(active[1]) < float(total[1]):
        return float(active[1]) / float(total[1])
    return _ACTIVE_SHARE if active or model_type in EXPERT_MODULES else 1.0


def estimated_facts(name: str, size: SizeFacts) -> ModelFacts:
    """`size.size_bytes` is more than 0."""
    mixture = size.active_share < 1
    billions = size.size_bytes * 8 / size.bits_per_weight / 1e9
    shapes = _MIXTURES if mixture else _DENSE
    shape = min(shapes, key=lambda known: abs(math.log(known.billions / billions)))
    store = KvStore(LayerKind.FULL, shape.kv_heads, _HEAD_SIZE, _HEAD_SIZE)
    return ModelFacts(
        path=Path(name),
        model_type=_model_type(size, mixture),
        outer_type=size.model_type,
        mutual_images=False,
        dtype="bfloat16",
        shape=ModelShape(
            hidden_size=shape.hidden,
            intermediate_size=shape.inter,
            vocab_size=_VOCABULARY,
            num_attention_heads=shape.heads,
            num_kv_heads=shape.kv_heads,
            head_size=_HEAD_SIZE,
            expert_size=shape.inter,
        ),
        layers=(Layer(LayerKind.FULL, (store,)),) * shape.depth,
        kv_assumed=False,
        max_context=size.max_context,
        weights=_weights(size, shape),
        quantisation=Quantisation(Packing(4, 64), {}, size.bits_per_weight),
        num_files=1,
        checkpoint_bytes=size.size_bytes,
        fingerprint="",
    )


def _model_type(size: SizeFacts, mixture: bool) -> str:
    """Its own where that streams as its size says; else that of the shapes above."""
    if mixture:
        return size.model_type if size.model_type in EXPERT_MODULES else "qwen3_moe"
    return size.model_type or "qwen3"


def _weights(size: SizeFacts, shape: _Shape) -> Weights:
    """An embedding with its head, and layers of one size; of a mixture most of it is experts."""
    total, depth, routed = size.size_bytes, shape.depth, 0
    if shape.experts:
        idle = total * (1 - size.active_share)
        routed = min(int(idle / (1 - shape.experts_per_token / shape.experts)), int(0.97 * total))
    ends = min(int(_VOCABULARY * shape.hidden * size.bits_per_weight / 8), (total - routed) // 4)
    dense = total - routed - 2 * ends
    parts = {
        WeightPart.DENSE: dense,
        WeightPart.EMBEDDING: ends,
        WeightPart.HEAD: ends,
        WeightPart.EXPERTS: routed,
    }
    experts = tuple(Experts(n, _amount(routed // depth, size)) for n in range(depth))
    layer = _amount((dense + routed) // depth, size)
    return Weights(
        parts={part: _amount(nbytes, size) for part, nbytes in parts.items()},
        experts=experts if routed else (),
        layers=(layer,) * depth,
        num_experts=shape.experts,
        experts_per_token=shape.experts_per_token,
        tied=False,
        largest_tensor_bytes=max(ends, routed // depth // 3),
        largest_layer_bytes=layer.fixed_bytes,
    )


def _amount(nbytes: int, size: SizeFacts) -> Amount:
    return Amount(fixed_bytes=nbytes, weights=int(nbytes * 8 / size.bits_per_weight))
