"""Masking: the one place where text meets MLX."""

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray


def apply_mask(logits: mx.array, masks: NDArray[np.int32]) -> mx.array:
    """Logits with what is not allowed at minus infinity; lazy.

    `logits` (B, V); `masks` (B, ceil(V / 32)), one bit per token, lowest bit first.
    """
    words = mx.array(masks).view(mx.uint32)  # (B, W)
    bits = (words[:, :, None] >> mx.arange(32, dtype=mx.uint32)) & 1  # (B, W, 32)
    allowed = bits.reshape(words.shape[0], -1)[:, : logits.shape[-1]]  # (B, V)
    return mx.where(allowed == 1, logits, -mx.inf)
