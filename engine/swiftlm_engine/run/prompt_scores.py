"""Log-probabilities of prompt tokens, for requests that want their prompt scored (`echo`).

Evaluation harnesses send a text and read how likely each of its tokens was. Logits of a whole
chunk may take gigabytes (tokens x vocabulary), so a scored chunk goes through the model in pieces.
A prefix that is in the cache has no logits: it is used as far as its scores are remembered.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx

from swiftlm_engine.brain.tokens import common_prefix
from swiftlm_engine.sampling.logprobs import TokenLogprob, of_tokens
from swiftlm_engine.schedule.sequence import Sequence

# Logits of a piece, and what scoring makes of a few of its rows, take what the plan has for the
# logits of sixteen rows that decode (`brain/plan/scratch.py`), however large the vocabulary.
PIECE_TOKENS = 32
_ROWS_AT_ONCE = 4
# Tokens and alternatives whose scores are remembered: some 30 MB of objects.
MAX_REMEMBERED = 1 << 17


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """`logprob` is NaN for the first token of a prompt, which nothing precedes."""

    token_id: int
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request wants to know of its prompt, and with whom it shares what is remembered."""

    top: int  # alternatives of each token
    salt: bytes | None  # None: with nobody


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    wish: Wish
    ids: list[int]
    scores: list[ScoredToken]

    @property
    def size(self) -> int:
        return len(self.ids) * (1 + self.wish.top)

    def is_like(self, other: ScoredPrompt) -> bool:
        return self.wish == other.wish and self.ids == other.ids


class PromptScores:
    """Owned by the engine thread.

    Scores of the last prompts are remembered: the choices of a question, and the questions behind
    the same examples, need passes only over what is new in them.
    """

    def __init__(self, max_remembered: int = MAX_REMEMBERED) -> None:
        self._max_remembered = max_remembered
        self._wishes: dict[str, Wish] = {}  # by request
        self._scores: dict[tuple[str, int], list[ScoredToken]] = {}
        self._remembered: deque[ScoredPrompt] = deque()  # oldest first
        self._size = 0  # of what is remembered
        self._recalled: dict[tuple[str, int], list[ScoredToken]] = {}  # of those that open

    def ask(self, request_id: str, top: int, salt: bytes | None = None) -> None:
        """From now on prompts of this request are scored."""
        self._wishes[request_id] = Wish(top, salt)

    def wants(self, sequence: Sequence) -> bool:
        """Not again when a preempted sequence comes back: its client has the scores."""
        return sequence.request_id in self._wishes and not sequence.output_ids

    def recall(self, sequence: Sequence) -> int:
        """How many of its first tokens have remembered scores."""
        if sequence.key not in self._recalled:
            wish = self._wishes[sequence.request_id]
            self._recalled[sequence.key] = self._longest_known(sequence.prompt_ids, wish)
        return len(self._recalled[sequence.key])

    def begin(self, sequence: Sequence, start: int) -> None:
        """Its KV is there for the tokens before `start`, which were recalled, and one more."""
        recalled = self._recalled.pop(sequence.key, [])
        first = ScoredToken(sequence.prompt_ids[0], math.nan)
        self._scores[sequence.key] = recalled[: start + 1] if start else [first]
        self._remember(sequence)

    def add(self, sequence: Sequence, logits: mx.array) -> None:
        """For logits (1, L, V) of the prompt's next tokens. Waits for the device."""
        scores = self._scores[sequence.key]
        ids = sequence.prompt_ids[len(scores) : len(scores) + logits.shape[1]]
        top = self._wishes[sequence.request_id].top
        for at in range(0, len(ids), _ROWS_AT_ONCE):
            some = ids[at : at + _ROWS_AT_ONCE]
            rows = of_tokens(logits[0, at : at + len(some)], some, top)
            found = zip(some, rows, strict=True)
            scores += [ScoredToken(i, own, others) for i, (own, others) in found]
        self._remember(sequence)

    def take(self, sequence: Sequence) -> list[ScoredToken]:
        """The scores of every prompt token; empty if nobody asked."""
        if not self.wants(sequence):
            return []
        first = [ScoredToken(sequence.prompt_ids[0], math.nan)]
        return self._scores.pop(sequence.key, first)  # a prompt of one token is not prefilled

    def forget(self, request_id: str) -> None:
        """The request ended; what is remembered of its prompts stays."""
        self._wishes.pop(request_id, None)
        for held in (self._scores, self._recalled):
            for key in [key for key in held if key[0] == request_id]:
                del held[key]

    def _remember(self, sequence: Sequence) -> None:
        """Once all of it is scored, whether its client has heard of it or not."""
        wish, scores = self._wishes[sequence.request_id], self._scores[sequence.key]
        if wish.salt is None or len(scores) < len(sequence.prompt_ids):
            return
        prompt = ScoredPrompt(wish, sequence.prompt_ids, scores)
        if any(prompt.is_like(other) for other in self._remembered):
            return
        self._remembered.append(prompt)
        self._size += prompt.size
        while self._size > self._max_remembered:
            self._size -= self._remembered.popleft().size

    def _longest_known(self, ids: list[int], wish: Wish) -> list[ScoredToken]:
        best: list[ScoredToken] = []
        for prompt in reversed(self._remembered):
            if prompt.wish.salt != wish.salt or prompt.wish.top != wish.top:
                continue
            if prompt.ids[: len(best) + 1] != ids[: len(best) + 1]:
                continue
            common = common_prefix(prompt.ids, ids)
            if common > len(best):
                best = prompt.scores[:common]
        return best if wish.salt is not None else []


def pieces(start: int, count: int) -> Iterator[tuple[int, int]]:
    """A chunk as (start, count) of parts whose logits are small."""
    for at in range(start, start + count, PIECE_TOKENS):
        yield at, min(PIECE_TOKENS, start + count - at)
