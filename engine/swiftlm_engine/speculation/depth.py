"""How many tokens to draft: as many as make the most tokens per second, by what passes took and
how often drafts held, over all requests since the load.

A draft of `d` tokens is expected to give `1 + a + a^2 + ... + a^d` tokens, where `a` is the share
of drafted tokens that held, and costs a pass of `d + 1` tokens. The time of a pass is the line
through what steps of one token take and what recent checked passes took.
"""

from __future__ import annotations

_KEPT = 0.9  # of the weight of earlier drafts, with each new one
_PRIOR_DRAFTED = 2.0  # tokens, of which half held: what is believed before anything was seen
_LEAST_DRAFTS = 4  # before a draft is cut


class DraftDepth:
    """Of one model and drafter."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._tested = self._held = 0.0
        self._num_drafts = 0
        self._plain_s = 0.0
        self._tokens = self._seconds = 0.0  # of a checked pass

    @property
    def acceptance(self) -> float:
        """Of a drafted token whose predecessors held."""
        return (self._held + _PRIOR_DRAFTED / 2) / (self._tested + _PRIOR_DRAFTED)

    def checked(self, drafted: int, held: int) -> None:
        """Tokens behind the first that did not hold were not tested."""
        self._tested = _KEPT * self._tested + min(drafted, held + 1)
        self._held = _KEPT * self._held + held
        self._num_drafts += 1

    def took(self, tokens: float, seconds: float) -> None:
        """A pass over so many tokens of each sequence."""
        if tokens == 1:
            self._plain_s = _mean(self._plain_s, seconds)
        else:
            self._tokens = _mean(self._tokens, tokens)
            self._seconds = _mean(self._seconds, seconds)

    def best(self) -> int:
        """Tokens to draft next, at least 1: whether drafts pay at all is measured elsewhere."""
        if self._num_drafts < _LEAST_DRAFTS or not (self._plain_s and self._tokens):
            return self.max_tokens
        per_token_s = max(0.0, (self._seconds - self._plain_s) / (self._tokens - 1))
        expected = chance = 1.0
        best, most = 1, 0.0
        for depth in range(1, self.max_tokens + 1):
            chance *= self.acceptance
            expected += chance
            rate = expected / (self._plain_s + per_token_s * depth)
            if rate > most:
                best, most = depth, rate
        return best


def _mean(known: float, new: float) -> float:
    return _KEPT * known + (1 - _KEPT) * new if known else new
