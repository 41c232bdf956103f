"""The image tower's sizes, from `vision_config`: what one picture costs is decided by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX_IMAGE_TOKENS = 4096  # of a Qwen picture; larger ones are scaled down
# Sizes that published configs leave out because mlx-vlm's class has them.
_PIXTRAL = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}
_LEFT_OUT = {"pixtral": _PIXTRAL, "mistral3": _PIXTRAL}
_QWEN_MERGE, _GEMMA4_POOLING, _GEMMA4_TOKENS = 2, 3, 280


@dataclass(frozen=True, slots=True)
class TowerShape:
    """`max_patches` is what the family itself takes; `is_fixed`: every picture has that many."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_elements: int  # numbers that a patch is made from
    max_patches: int
    is_fixed: bool
    pads_heads: bool  # to a size that fused attention knows
    masked: bool  # a mask of patches by patches beside the scores

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads


def tower_shape(root: dict[str, Any]) -> TowerShape | None:
    """None where config.json does not say, or not in numbers that make sense."""
    vision = root.get("vision_config")
    if not isinstance(vision, dict):
        return None
    family = str(root.get("model_type"))
    vision = _LEFT_OUT.get(family, {}) | vision
    hidden = _number(vision, "embed_dim", "hidden_size")
    heads = _number(vision, "num_heads", "num_attention_heads")
    patch = _number(vision, "patch_size") or 14
    if not hidden or not heads or hidden < heads:
        return None
    ratio = vision.get("mlp_ratio")
    widening = ratio if isinstance(ratio, int | float) and 0 < ratio < 1000 else 4
    inner = _number(vision, "intermediate_size") or int(widening * hidden)
    frames = (_number(vision, "temporal_patch_size") or 2) if family.startswith("qwen") else 1
    return TowerShape(
        hidden_size=hidden,
        intermediate_size=inner,
        num_heads=heads,
        patch_elements=3 * patch**2 * frames,
        max_patches=_max_patches(family, vision, patch),
        is_fixed=family == "gemma3",
        pads_heads=family == "gemma4" or family.startswith("qwen3"),
        masked=family in ("gemma4", "pixtral", "mistral3"),
    )


def _max_patches(family: str, vision: dict[str, Any], patch: int) -> int:
    if family.startswith("qwen"):
        merge = _number(vision, "spatial_merge_size") or _QWEN_MERGE
        return MAX_IMAGE_TOKENS * merge**2
    if family == "gemma4":
        pooling = _number(vision, "pooling_kernel_size") or _GEMMA4_POOLING
        return (_number(vision, "default_output_length") or _GEMMA4_TOKENS) * pooling**2
    side = (_number(vision, "image_size") or 896) // patch
    return max(1, side**2)


def _number(section: dict[str, Any], *names: str) -> int:
    found = (section.get(name) for name in names)
    return next((n for n in found if type(n) is int and n > 0), 0)
