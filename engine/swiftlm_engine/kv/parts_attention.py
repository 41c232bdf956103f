"""Attention of decode steps over keys and values that are in several buffers. Plain ops, lazy.

The scores against each buffer are put side by side, so that the weights are those of one softmax.
Where rows have their first tokens in common, one product serves all of them: their keys and values
are read once for the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask

Attention = Callable[..., mx.array]
Mask: TypeAlias = mx.array | str | None


class KVParts:
    """Keys or values of one row, (1, H, N, d) each with an N of its own."""

    def __init__(self, arrays: list[mx.array]) -> None:
        self.arrays = arrays

    def attend_rows(
        self,
        attention: Attention,
        queries: mx.array,
        values: KVParts,
        mask: Mask,
        *,
        scale: float,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """(1, Hq, L, d) queries of the newest L tokens -> (1, Hq, L, dv)."""
        return attend_parts(queries, self.arrays, values.arrays, mask, scale, sinks)


def attend_parts(
    queries: mx.array,
    keys: Sequence[mx.array],
    values: Sequence[mx.array],
    mask: Mask,
    scale: float,
    sinks: mx.array | None = None,
) -> mx.array:
    """Of B rows, each with parts of its own: (B, Hq, L, d) -> (B, Hq, L, dv)."""
    q = grouped(queries * scale, keys[0].shape[1])  # (B, H, G * L, d)
    scores = mx.concatenate([q @ k.swapaxes(-1, -2) for k in keys], axis=-1)
    weights = softmax(_masked(scores, queries.shape[2], mask), queries.shape[2], sinks)
    out, start = None, 0
    for v in values:
        part = weights[..., start : start + v.shape[2]] @ v
        out, start = part if out is None else out + part, start + v.shape[2]
    assert out is not None
    return out.reshape(*queries.shape[:3], -1)


def attend_prefixed(
    queries: mx.array,
    prefix: tuple[mx.array, mx.array],
    tails: tuple[mx.array, mx.array],
    mask: mx.array | None,
    scale: float,
    sinks: mx.array | None = None,
) -> mx.array:
    """(B, Hq, 1, d) over a prefix (1, H, P, d) that all rows have, and tails (B, H, T, d) that are
    padded to one length; `mask` says which of their tokens are there."""
    rows, heads = queries.shape[0], prefix[0].shape[1]
    q = grouped(queries * scale, heads)  # (B, H, G, d)
    own = q @ tails[0].swapaxes(-1, -2)
    if mask is not None:
        own = mx.where(mask, own, _lowest(own.dtype))
    scores = mx.concatenate([_per_row(_by_head(q) @ prefix[0][0].swapaxes(-1, -2), rows), own], -1)
    weights = softmax(scores, 1, sinks)
    length = prefix[0].shape[2]
    common = _per_row(_by_head(weights[..., :length]) @ prefix[1][0], rows)
    out = common + weights[..., length:] @ tails[1]
    return out.reshape(*queries.shape[:3], -1)


def attend_prefixed_rows(
    queries: mx.array,
    prefix: tuple[mx.array, mx.array],
    tails: Sequence[tuple[mx.array, mx.array]],
    scale: float,
    sinks: mx.array | None = None,
) -> mx.array:
    """As `attend_prefixed`, with tails (1, H, T, d) of any length each."""
    rows, heads = queries.shape[0], prefix[0].shape[1]
    q = grouped(queries * scale, heads)
    common = mx.split(_per_row(_by_head(q) @ prefix[0][0].swapaxes(-1, -2), rows), rows)
    length = prefix[0].shape[2]
    weights, own = [], []
    for one, scores, (keys, values) in zip(mx.split(q, rows), common, tails, strict=True):
        each = softmax(mx.concatenate([scores, one @ keys.swapaxes(-1, -2)], -1), 1, sinks)
        weights.append(each[..., :length])
        own.append(each[..., length:] @ values)
    out = _per_row(_by_head(mx.concatenate(weights)) @ prefix[1][0], rows) + mx.concatenate(own)
    return out.reshape(*queries.shape[:3], -1)


def grouped(queries: mx.array, heads: int) -> mx.array:
    """(B, Hq, L, d) -> (B, H, G * L, d): the queries of one KV head side by side."""
    return queries.reshape(queries.shape[0], heads, -1, queries.shape[-1])


def softmax(scores: mx.array, num_queries: int, sinks: mx.array | None) -> mx.array:
    """Over the last axis of (B, H, G * L, N); a sink takes its share and gives no value."""
    if sinks is None:
        return mx.softmax(scores, axis=-1, precise=True)
    heads = scores.shape[1]
    column = mx.repeat(sinks.reshape(heads, -1), num_queries, axis=1)[None, :, :, None]
    column = mx.broadcast_to(column.astype(scores.dtype), (*scores.shape[:-1], 1))
    return mx.softmax(mx.concatenate([column, scores], -1), axis=-1, precise=True)[..., 1:]


def _masked(scores: mx.array, num_queries: int, mask: Mask) -> mx.array:
    """`mask`: "causal", or (..., L, N), true where a query sees a token, or what is added."""
    if mask is None or (isinstance(mask, str) and num_queries == 1):
        return scores
    seen: mx.array = mask
    if isinstance(mask, str):
        seen = create_causal_mask(num_queries, scores.shape[-1] - num_queries)
    shape = scores.shape
    scores = scores.reshape(*shape[:2], -1, num_queries, shape[-1])  # (B, H, G, L, N)
    if seen.ndim == 4:
        seen = seen[:, :, None] if seen.shape[1] == 1 else seen.reshape(scores.shape)
    if seen.dtype == mx.bool_:
        scores = mx.where(seen, scores, _lowest(scores.dtype))
    else:
        scores = scores + seen
    return scores.reshape(shape)


def _lowest(dtype: mx.Dtype) -> mx.array:
    return mx.array(mx.finfo(dtype).min, dtype)


def _by_head(rows: mx.array) -> mx.array:
    """(B, H, G, n) -> (H, B * G, n)."""
    return rows.swapaxes(0, 1).reshape(rows.shape[1], -1, rows.shape[-1])


def _per_row(heads: mx.array, rows: int) -> mx.array:
    """(H, B * G, n) -> (B, H, G, n)."""
    return heads.reshape(heads.shape[0], rows, -1, heads.shape[-1]).swapaxes(0, 1)
