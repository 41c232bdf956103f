"""What a prefill pass costs by its tokens, learned from the passes themselves."""

from __future__ import annotations

import math

# Chunks are cut to whole multiples, so that kernels see few different shapes.
CHUNK_GRAIN = 16

_KEPT = 0.7  # of the weight of earlier passes, with each usual one
_LEAST_SPREAD = 0.3  # of sizes, as a share of their mean
_MOST_ALIKE = 16  # passes whose sizes differ less, before one is made to differ
_OTHER_DEPTH = 8192  # tokens further on in a prompt, or before
_MOST_FIXED = 0.95  # of the mean seconds: no token looks free


class PassCost:
    """Seconds of a pass: a fixed part and one for each token.

    Fixed is what is read once, however many tokens use it: the weights, and above all those that
    come from the disk. The two are a weighted least-squares line. A pass counts by how recent it
    is, and by 1 / seconds, since what it is off by grows with what it takes: where the fixed part
    is none, this is the average of the rates.
    """

    def __init__(self, tokens_per_s: float) -> None:
        """`tokens_per_s` is a guess, and gone with the first pass."""
        self.fixed_s = 0.0
        self.per_token_s = self._mean_per_token_s = 1 / tokens_per_s
        self._sums = _Sums()
        self._largest = 0.0  # tokens in a pass lately
        self._depth = 0
        self._num_alike = math.inf  # passes since sizes differed

    @property
    def is_measured(self) -> bool:
        return self._largest > 0

    def seconds(self, tokens: int) -> float:
        return self.fixed_s + tokens * self.per_token_s

    def chunk(self, seconds: float, largest: int) -> int:
        """Tokens of a long prompt for a pass of so many seconds, or of two fixed parts: in a
        shorter one more than half would be fixed."""
        tokens = self._tokens_in(max(seconds, 2 * self.fixed_s))
        if self._num_alike >= _MOST_ALIKE and self.is_measured:
            tokens = self._another_size(max(CHUNK_GRAIN, tokens), seconds)
        grained = min(largest, tokens) // CHUNK_GRAIN * CHUNK_GRAIN
        return max(CHUNK_GRAIN, grained)

    def observe(self, tokens: int, seconds: float, *, usual: int, depth: int = 0) -> None:
        """Of a pass behind `depth` tokens.

        Those at quite another depth are no longer comparable. One of fewer than the `usual` tokens
        makes earlier ones less old: many short prompts do not make it forget a long one.
        """
        if tokens <= 0 or seconds <= 0:
            return
        if abs(depth - self._depth) > _OTHER_DEPTH:
            self._sums = _Sums()
        self._depth = depth
        kept = _KEPT ** min(1.0, tokens / usual)
        self._sums.add(tokens, seconds, kept)
        self._largest = max(tokens, kept * self._largest)
        self._fit()

    def _tokens_in(self, seconds: float) -> int:
        """At most twice what was seen lately, lest a line that is wrong takes all at once; or what
        a line without a fixed part allows, which is never too fast for larger passes."""
        tokens = (seconds - self.fixed_s) / self.per_token_s
        return int(min(tokens, max(2 * self._largest, seconds / self._mean_per_token_s)))

    def _another_size(self, tokens: int, seconds: float) -> int:
        """Passes of one size do not tell a fixed part from slowness: what was believed first would
        be believed for ever. A larger pass tells, or a smaller one where a fixed part counts."""
        seen = self._sums.tokens / self._sums.weight
        if not seen / 2 < tokens < 2 * seen:
            return tokens
        if min(tokens, seen) < 2 * CHUNK_GRAIN:
            return int(2 * seen) + CHUNK_GRAIN
        if self._num_alike == math.inf:
            return int(seen / 2 if tokens < seen else 2 * seen)
        return tokens // 4 if self.fixed_s > seconds / 5 else tokens

    def _fit(self) -> None:
        sums = self._sums
        tokens, seconds = sums.tokens / sums.weight, sums.seconds / sums.weight
        variance = sums.squares / sums.weight - tokens * tokens
        # Sizes that differ little tell noise, and depth in the prompt: passes get slower by it,
        # and smaller since they are slower. Then the fixed part stays what it was.
        self._num_alike += 1
        if variance > (_LEAST_SPREAD * tokens) ** 2:
            self._num_alike = 0
            slope = (sums.products / sums.weight - tokens * seconds) / variance
            self.fixed_s = seconds - slope * tokens
        self.fixed_s = min(max(self.fixed_s, 0.0), _MOST_FIXED * seconds)
        self.per_token_s = (seconds - self.fixed_s) / tokens
        self._mean_per_token_s = seconds / tokens


class _Sums:
    """Over passes, each by its weight."""

    def __init__(self) -> None:
        self.weight = self.tokens = self.seconds = self.squares = self.products = 0.0

    def add(self, tokens: int, seconds: float, kept: float) -> None:
        weight = 1 / seconds
        self.weight = kept * self.weight + weight
        self.tokens = kept * self.tokens + weight * tokens
        self.seconds = kept * self.seconds + weight * seconds
        self.squares = kept * self.squares + weight * tokens * tokens
        self.products = kept * self.products + weight * tokens * seconds
