"""Log-probabilities of the raw distribution, before penalties, filters and temperature."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class PendingLogprobs:
    """Lazy log-probabilities of one sampled token and its `top` alternatives."""

    chosen: mx.array  # (1,)
    top_ids: mx.array | None  # (top,)
    top_logprobs: mx.array | None  # (top,)

    def arrays(self) -> list[mx.array]:
        return [a for a in (self.chosen, self.top_ids, self.top_logprobs) if a is not None]

    def read(self) -> tuple[float, tuple[TokenLogprob, ...]]:
        """Waits for the device. The alternatives come most likely first."""
        if self.top_ids is None or self.top_logprobs is None:
            return self.chosen.item(), ()
        return self.chosen.item(), _ranked(self.top_ids.tolist(), self.top_logprobs.tolist())


def of_tokens(
    logits: mx.array, token_ids: list[int], top: int
) -> list[tuple[float, tuple[TokenLogprob, ...]]]:
    """For logits (L, V): the log-probability of `token_ids[i]` and the `top` likeliest tokens in
    row i. Waits for the device."""
    logits = logits.astype(mx.float32)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(logprobs, mx.array(token_ids)[:, None], axis=-1)[:, 0]
    if top == 0:
        return [(logprob, ()) for logprob in chosen.tolist()]
    top = min(top, logits.shape[-1])
    ids = mx.argpartition(-logprobs, kth=top - 1, axis=-1)[:, :top]
    values = mx.take_along_axis(logprobs, ids, axis=-1)
    mx.eval(chosen, ids, values)
    rows = zip(chosen.tolist(), ids.tolist(), values.tolist(), strict=True)
    return [(own, _ranked(row_ids, row_values)) for own, row_ids, row_values in rows]


def _ranked(token_ids: list[int], logprobs: list[float]) -> tuple[TokenLogprob, ...]:
    """Most likely first."""
    pairs = sorted(zip(token_ids, logprobs, strict=True), key=lambda pair: -pair[1])
    return tuple(TokenLogprob(i, p) for i, p in pairs)


def pending(logits: mx.array, sampled: mx.array, top: int) -> PendingLogprobs:
    """For logits (1, V) and the token (1,) sampled from them."""
    logits = logits.astype(mx.float32)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    chosen = logprobs[0, sampled]
    if top == 0:
        return PendingLogprobs(chosen, None, None)
    top = min(top, logits.shape[-1])
    ids = mx.argpartition(-logprobs[0], kth=top - 1)[:top]
    return PendingLogprobs(chosen, ids, logprobs[0, ids])
