"""One decoding row's sampling state: what its next token depends on besides the logits.

Everything stays on the device and lazy, so that the next step can be dispatched before the last
token is read. A row's draws depend on its own seed and position only, never on its neighbours.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Protocol

import mlx.core as mx
from mlx_lm.models.cache import TokenBuffer
from mlx_lm.sample_utils import make_repetition_penalty

from swiftlm_engine.sampling.settings import SamplingSettings

_MASK = (1 << 64) - 1


class RowSampling:
    """Penalties and randomness of one row. Owned by the engine thread."""

    def __init__(
        self,
        settings: SamplingSettings,
        prompt_ids: list[int],
        vocab_size: int,
        index: int = 0,
        spared_ids: Iterable[int] = (),
    ) -> None:
        """`index` tells the n choices of one request apart: each draws from its own stream.
        `spared_ids` are never dropped by XTC: without its ends an answer does not end."""
        self.settings = settings
        self._spared_ids = tuple(sorted(i for i in set(spared_ids) if i < vocab_size))
        seed = secrets.randbits(63) if settings.seed is None else settings.seed
        self._seed = (seed + index * 0x9E3779B97F4A7C15) & _MASK
        self._position = 0
        self._vocab_size = vocab_size
        self._repetition = None
        self._history: TokenBuffer | None = None
        if settings.repetition_penalty != 1.0:
            self._repetition = make_repetition_penalty(
                settings.repetition_penalty, settings.repetition_context
            )
            # The last prompt token arrives with the first `adjust`.
            self._history = TokenBuffer(prompt_ids[-settings.repetition_context : -1])
        self._counts = mx.zeros((vocab_size,)) if self._counts_matter else None
        self._bias = _bias_vector(settings, vocab_size)
        self._seen_prompt_end = False
        self._replaying = False

    @property
    def spared_ids(self) -> tuple[int, ...]:
        return self._spared_ids if self.settings.xtc_probability > 0.0 else ()

    @property
    def filters(self) -> tuple[object, ...]:
        """Rows with equal filters are filtered in one call."""
        return (*self.settings.filters, self.spared_ids)

    @property
    def _counts_matter(self) -> bool:
        return self.settings.presence_penalty != 0.0 or self.settings.frequency_penalty != 0.0

    @property
    def plain(self) -> bool:
        """The logits are used as they are."""
        return self._bias is None and not self.settings.needs_history

    def adjust(self, logits: mx.array, fed: mx.array) -> mx.array:
        """Logits (1, V) with bias and penalties; `fed` (1,) is the token these logits follow."""
        replaying, self._replaying = self._replaying, False
        if self._history is not None and self._repetition is not None:
            known = self._history.tokens if replaying else self._history.update_and_fetch(fed)
            logits = self._repetition(known, logits)
        if self._counts is not None:
            if self._seen_prompt_end and not replaying:  # the first fed token is no output
                self._counts = self._counts.at[fed].add(1.0)
            self._seen_prompt_end = True
            penalty = self.settings.frequency_penalty * self._counts
            penalty = penalty + self.settings.presence_penalty * (self._counts > 0)
            logits = logits - penalty.astype(logits.dtype)
        if self._bias is not None:
            logits = logits + self._bias.astype(logits.dtype)
        return logits

    def rewind(self) -> None:
        """The last draw is thrown away unread; its token is fed and drawn once more."""
        self.take_back(1)
        self._replaying = True

    def take_back(self, count: int) -> None:
        """The last `count` draws did not happen: their noise is used again."""
        self._position -= count

    def next_key(self) -> mx.array:
        """The key of this row's next draw, a function of seed and position alone."""
        mixed = (self._seed ^ (self._position * 0xD1342543DE82EF95)) & _MASK
        self._position += 1
        return mx.random.key(mixed)


def _bias_vector(settings: SamplingSettings, vocab_size: int) -> mx.array | None:
    if not settings.logit_bias:
        return None
    ids = mx.array([token_id for token_id, _ in settings.logit_bias])
    values = mx.array([bias for _, bias in settings.logit_bias])
    return mx.zeros((vocab_size,)).at[ids].add(values)


class TokenConstraint(Protocol):
    """A grammar that follows one row (see row_constraint.py)."""

    @property
    def is_done(self) -> bool: ...

    def advance(self, token_id: int) -> None: ...

    def apply(self, logits: mx.array) -> mx.array: ...
