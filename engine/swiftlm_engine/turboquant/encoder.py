"""Exact tokens to pages: smooth the keys, then encode, by kernel where there is one."""

import mlx.core as mx

from swiftlm_engine.turboquant.codec import Codec, Pages, sanitise


def encode_pages(
    codec: Codec, keys: mx.array, values: mx.array, means: mx.array, equaliser: mx.array
) -> Pages:
    """(H, T, d) keys and values, T a multiple of 64, with the mean of each token -> pages."""
    smoothed = (sanitise(keys) - means) / equaliser.astype(mx.float32)[:, None]
    return codec.encode(smoothed, values)
