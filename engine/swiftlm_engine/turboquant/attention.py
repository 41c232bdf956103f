"""Attention over compressed KV in plain MLX ops: block by block, with a running softmax.

Keys and values stay in the rotated space: the query is rotated once, the summed output is turned
back once. The CPU path, and what the kernels are compared with. Float32 inside, results lazy.
"""

from dataclasses import dataclass

import mlx.core as mx

from swiftlm_engine.turboquant.formats import PAGE_TOKENS, SEGMENT_PAGES
from swiftlm_engine.turboquant.sequence import SequenceKV

BLOCK_PAGES = 32  # 2048 tokens decoded at a time
BLOCK_QUERIES = 256


@dataclass(frozen=True, slots=True)
class Partial:
    """Softmax over a part of the tokens: maximum, sum of weights, weighted values."""

    maximum: mx.array  # (H, R, 1)
    weight: mx.array  # (H, R, 1)
    values: mx.array  # (H, R, d)

    def merge(self, other: "Partial") -> "Partial":
        maximum = mx.maximum(self.maximum, other.maximum)
        mine, theirs = mx.exp(self.maximum - maximum), mx.exp(other.maximum - maximum)
        return Partial(
            maximum,
            self.weight * mine + other.weight * theirs,
            self.values * mine + other.values * theirs,
        )


def attend(kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
    """(..., Hq, T, d) queries of the newest T tokens -> the same shape and dtype."""
    shape, queries = queries.shape, queries.reshape(queries.shape[-3:])
    num_queries = queries.shape[1]
    blocks = [
        _attend_block(kv, queries[:, start : start + BLOCK_QUERIES], scale, num_queries - start)
        for start in range(0, num_queries, BLOCK_QUERIES)
    ]
    return (blocks[0] if len(blocks) == 1 else mx.concatenate(blocks, axis=1)).reshape(shape)


def _attend_block(kv: SequenceKV, queries: mx.array, scale: float, distance: int) -> mx.array:
    """`distance`: how many tokens before the end the first of these queries is."""
    heads = kv.exact_keys.shape[0]
    num_heads, rows, dim = queries.shape
    q = queries.astype(mx.float32).reshape(heads, -1, dim)  # (H, G*T, d)
    visible = kv.num_exact - distance + 1 + mx.arange(rows)
    total = _exact_part(kv, q * scale, mx.tile(visible, num_heads // heads)[:, None])
    if kv.num_pages:
        old = _pages_part(kv, q * scale)
        turned = kv.codec.rotation.inverse(old.values)
        total = total.merge(Partial(old.maximum, old.weight, turned))
    out = total.values / total.weight
    return out.reshape(num_heads, rows, dim).astype(queries.dtype)


def _exact_part(kv: SequenceKV, q: mx.array, visible: mx.array) -> Partial:
    keys = kv.exact_keys[:, : kv.num_exact].astype(mx.float32)
    values = kv.exact_values[:, : kv.num_exact].astype(mx.float32)
    logits = q @ keys.swapaxes(-1, -2)
    logits = mx.where(mx.arange(kv.num_exact)[None] < visible, logits, -mx.inf)
    return _partial(logits, values)


def _pages_part(kv: SequenceKV, q: mx.array) -> Partial:
    turned = kv.codec.rotation.forward(q * kv.equaliser.astype(mx.float32)[:, None])
    offsets = q @ kv.means.astype(mx.float32).swapaxes(-1, -2)  # (H, R, S): q.mu per segment
    total: Partial | None = None
    for start in range(0, kv.num_pages, BLOCK_PAGES):
        stop = min(start + BLOCK_PAGES, kv.num_pages)
        pages = kv.page_range(start, stop)
        logits = turned @ kv.codec.decode_keys(pages).swapaxes(-1, -2)
        segments = mx.arange(start * PAGE_TOKENS, stop * PAGE_TOKENS) // (
            SEGMENT_PAGES * PAGE_TOKENS
        )
        part = _partial(logits + offsets[..., segments], kv.codec.decode_values(pages))
        total = part if total is None else total.merge(part)
    assert total is not None
    return total


def _partial(logits: mx.array, values: mx.array) -> Partial:
    maximum = mx.max(logits, -1, keepdims=True)
    weights = mx.exp(logits - maximum)
    return Partial(maximum, mx.sum(weights, -1, keepdims=True), weights @ values)


def exact_attention(kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
    return plain_attention(queries, *kv.keys_and_values(), scale)


def plain_attention(queries: mx.array, keys: mx.array, values: mx.array, scale: float) -> mx.array:
    """(..., Hq, T, d) queries over ordinary (H, N, d) keys and values."""
    mask = "causal" if queries.shape[-2] > 1 else None
    out = mx.fast.scaled_dot_product_attention(
        queries.reshape(1, *queries.shape[-3:]), keys[None], values[None], scale=scale, mask=mask
    )
    return out.reshape(queries.shape)
