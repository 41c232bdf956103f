"""What the pass over one picture needs beside its weights: the tower has no chunks.

Where attention is not fused, scores grow with the square of the patches. So a picture is scaled
down until its pass stays within a bound, and the plan prices that pass. The engine cuts by the rule
by which the plan prices.
"""

from __future__ import annotations

import math

from swiftlm_engine.brain.facts.tower import TowerShape
from swiftlm_engine.brain.plan.machine import Accelerator
from swiftlm_engine.brain.plan.scratch import FUSED_HEADS

MAX_IMAGE_SCRATCH_BYTES = 1 << 30

# Fitted to MLX's peak on the CPU back end over the ten tiny towers and wider ones.
_HIDDEN_KEPT = 24
_INNER_KEPT = 2
_PIXELS_KEPT = 4


def image_scratch(
    tower: TowerShape, accelerator: Accelerator, itemsize: int, patches: int | None = None
) -> int:
    """Bytes at the peak of the pass over a picture (default: the largest that is let in)."""
    if patches is None:
        patches = max_patches(tower, accelerator, itemsize)
    each, pair = _elements(tower, accelerator)
    return (each * patches + pair * patches**2) * itemsize


def max_patches(tower: TowerShape, accelerator: Accelerator, itemsize: int) -> int:
    """Of the largest picture that stays within the bound."""
    if tower.is_fixed:
        return tower.max_patches
    each, pair = _elements(tower, accelerator)
    most = MAX_IMAGE_SCRATCH_BYTES // itemsize
    if not pair:
        return min(tower.max_patches, most // each)
    root = (math.isqrt(each**2 + 4 * pair * most) - each) // (2 * pair)
    return max(1, min(tower.max_patches, root))


def _elements(tower: TowerShape, accelerator: Accelerator) -> tuple[int, int]:
    """Numbers held for each patch, and for each pair of patches."""
    each = (
        _HIDDEN_KEPT * tower.hidden_size
        + _INNER_KEPT * tower.intermediate_size
        + _PIXELS_KEPT * tower.patch_elements
    )
    fused = FUSED_HEADS[accelerator]
    is_fused = tower.head_size in fused or (
        tower.pads_heads and any(tower.head_size <= size for size in fused)
    )
    mask = 2 if tower.masked else 0
    return each, mask + (0 if is_fused else tower.num_heads)
