"""Log-probabilities of prompt tokens, for requests that want their prompt scored (`echo`).

Evaluation harnesses send a text and read how likely each of its tokens was. Logits of a whole
chunk may take gigabytes (tokens x vocabulary), so a scored chunk goes through the model in pieces.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx

from swiftlm_engine.sampling.logprobs import TokenLogprob, of_tokens
from swiftlm_engine.schedule.sequence import Sequence

# Logits of a piece, and what scoring makes of a few of its rows, take what the plan has for the
# logits of sixteen rows that decode (`brain/plan/scratch.py`), however large the vocabulary.
PIECE_TOKENS = 32
_ROWS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """`logprob` is NaN for the first token of a prompt, which nothing precedes."""

    token_id: int
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


class PromptScores:
    """Owned by the engine thread."""

    def __init__(self) -> None:
        self._top: dict[str, int] = {}  # by request: how many alternatives it wants
        self._scores: dict[tuple[str, int], list[ScoredToken]] = {}

    def ask(self, request_id: str, top: int) -> None:
        """From now on prompts of this request are scored."""
        self._top[request_id] = top

    def wants(self, sequence: Sequence) -> bool:
        """Not again when a preempted sequence comes back: its client has the scores."""
        return sequence.request_id in self._top and not sequence.output_ids

    def add(self, sequence: Sequence, start: int, logits: mx.array) -> None:
        """For logits (1, L, V) of the prompt's tokens from `start` on. Waits for the device."""
        if start == 0:
            first = ScoredToken(sequence.prompt_ids[0], math.nan)
            self._scores[sequence.key] = [first]
        ids = sequence.prompt_ids[start + 1 : start + 1 + logits.shape[1]]
        for at in range(0, len(ids), _ROWS_AT_ONCE):
            some = ids[at : at + _ROWS_AT_ONCE]
            rows = of_tokens(logits[0, at : at + len(some)], some, self._top[sequence.request_id])
            found = [ScoredToken(i, own, top) for i, (own, top) in zip(some, rows, strict=True)]
            self._scores[sequence.key] += found

    def take(self, sequence: Sequence) -> list[ScoredToken]:
        """The scores of every prompt token; empty if nobody asked."""
        if not self.wants(sequence):
            return []
        first = [ScoredToken(sequence.prompt_ids[0], math.nan)]
        return self._scores.pop(sequence.key, first)  # a prompt of one token is not prefilled

    def forget(self, request_id: str) -> None:
        self._top.pop(request_id, None)
        for key in [key for key in self._scores if key[0] == request_id]:
            del self._scores[key]


def pieces(start: int, count: int) -> Iterator[tuple[int, int]]:
    """A chunk as (start, count) of parts whose logits are small."""
    for at in range(start, start + count, PIECE_TOKENS):
        yield at, min(PIECE_TOKENS, start + count - at)
