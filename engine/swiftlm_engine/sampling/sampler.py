"""Tokens for a batch of rows, each by its own settings. All lazy.

The filters and their order (top-p, min-p, XTC, top-k, then temperature) are mlx-lm's. The draw is
the Gumbel-max trick (argmax of log-probability / temperature + Gumbel noise), with noise from the
row's own key: equal in distribution to `mx.random.categorical`, and independent of the batch.
"""

from __future__ import annotations

from collections import defaultdict

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from swiftlm_engine.sampling.row import RowSampling


def sample(logits: mx.array, fed: mx.array, rows: list[RowSampling]) -> mx.array:
    """Next tokens (B,) for logits (B, V) that follow the tokens `fed` (B,)."""
    if not all(row.plain for row in rows):
        logits = mx.concatenate(
            [
                logits[i : i + 1] if row.plain else row.adjust(logits[i : i + 1], fed[i : i + 1])
                for i, row in enumerate(rows)
            ]
        )
    if all(row.settings.greedy for row in rows):
        return most_likely(logits)
    return _sample_groups(_logprobs(logits), rows)


def most_likely(logits: mx.array) -> mx.array:
    """What `sample` draws for greedy rows that use their logits as they are."""
    return mx.argmax(_logprobs(logits), axis=-1)


def _logprobs(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _sample_groups(logprobs: mx.array, rows: list[RowSampling]) -> mx.array:
    """Rows with equal filters are filtered together; the draw is per row."""
    groups: dict[object, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        groups["greedy" if row.settings.greedy else row.filters].append(i)
    tokens: list[mx.array | None] = [None] * len(rows)
    for kind, members in groups.items():
        picked = logprobs if len(members) == len(rows) else logprobs[mx.array(members)]
        chosen = (
            mx.argmax(picked, axis=-1)
            if kind == "greedy"
            else _draw(picked, [rows[i] for i in members])
        )
        for position, i in enumerate(members):
            tokens[i] = chosen[position : position + 1]
    return mx.concatenate([token for token in tokens if token is not None])


def _draw(logprobs: mx.array, rows: list[RowSampling]) -> mx.array:
    keys = [mx.random.split(row.next_key()) for row in rows]
    settings = rows[0].settings
    if 0.0 < settings.top_p < 1.0:
        logprobs = apply_top_p(logprobs, settings.top_p)
    if settings.min_p > 0.0:
        logprobs = apply_min_p(logprobs, settings.min_p)
    if settings.xtc_probability > 0.0:
        logprobs = _apply_xtc(logprobs, [key[1] for key in keys], rows)
    if settings.top_k > 0:
        logprobs = apply_top_k(logprobs, settings.top_k)
    noise = mx.stack([mx.random.gumbel(logprobs.shape[-1:], key=key[0]) for key in keys])
    temperatures = mx.array([[row.settings.temperature] for row in rows])
    return mx.argmax(logprobs.astype(mx.float32) / temperatures + noise, axis=-1)


def _apply_xtc(logprobs: mx.array, keys: list[mx.array], rows: list[RowSampling]) -> mx.array:
    """Drops all but the least likely of the tokens above the threshold, with the row's chance;
    never ends and newlines."""
    threshold = rows[0].settings.xtc_threshold
    probs = mx.softmax(logprobs.astype(mx.float32), axis=-1)
    least = mx.where(probs > threshold, probs, mx.inf).min(axis=-1, keepdims=True)
    dice = mx.stack([mx.random.uniform(shape=(1,), key=key) for key in keys])
    above = probs > least
    if spared := list(rows[0].spared_ids):
        above[:, spared] = False
    drop = above & (dice < rows[0].settings.xtc_probability)
    return mx.where(drop, -mx.inf, logprobs)
