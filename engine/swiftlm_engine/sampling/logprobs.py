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

    def read(self) -> tuple[float, list[TokenLogprob]]:
        """Waits for the device. The alternatives come most likely first."""
        if self.top_ids is None or self.top_logprobs is None:
            return self.chosen.item(), []
        pairs = zip(self.top_ids.tolist(), self.top_logprobs.tolist(), strict=True)
        ranked = sorted(pairs, key=lambda pair: -pair[1])
        return self.chosen.item(), [TokenLogprob(i, p) for i, p in ranked]


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
