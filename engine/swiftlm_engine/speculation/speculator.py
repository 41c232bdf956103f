"""One checked pass: the pending token and a draft go in, the tokens that hold come out.

Caches are left as if only those had been fed (`round.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from swiftlm_engine.kv.draft_rows import draft_rows
from swiftlm_engine.sampling.row import RowSampling
from swiftlm_engine.sampling.sampler import sample
from swiftlm_engine.schedule.sequence import Sequence
from swiftlm_engine.speculation.depth import DraftDepth
from swiftlm_engine.speculation.payoff import Payoff
from swiftlm_engine.speculation.round import Round


class Drafter(Protocol):
    """Guesses the next tokens of one sequence."""

    def extend(self, ids: list[int]) -> None: ...

    def propose(self, max_tokens: int) -> list[int]: ...


@dataclass(slots=True, eq=False)
class _Known:
    """A drafter and how many of its sequence's tokens it has been told."""

    sequence: Sequence
    drafter: Drafter
    num_told: int = 0


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of a draft. `round` goes back further as long as nothing else is fed."""

    held: list[int]  # drafted tokens that hold
    drawn: int  # the token behind them
    round: Round


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """Of one of several rows."""

    held: list[int]
    drawn: int
    num_rejected: int


@dataclass(slots=True)
class _Width:
    """What was measured of so many rows that decode together."""

    payoff: Payoff
    depth: DraftDepth
    entered_at: float | None = None
    checked: float = 0.0  # in the last step: tokens of a row, drafts included
    looked: bool = False  # for drafts, in the last step
    tries: bool = False
    has_switched: bool = False


class Speculator:
    """Whether to draft, how much, and what holds. Each width of a batch is judged for itself: there
    rows with and without drafts share a pass, and all pay for its length."""

    def __init__(
        self,
        make_drafter: Callable[[], Drafter],
        draft_tokens: int,
        clock: Callable[[], float] = time.perf_counter,
        *,
        one_sequence: bool = True,
    ) -> None:
        """`one_sequence`: a drafter holds memory, so that there is one at a time."""
        self.draft_tokens = draft_tokens
        self.one_sequence = one_sequence
        self._make_drafter = make_drafter
        self._clock = clock
        self._known: dict[Sequence, _Known] = {}
        self._widths: dict[int, _Width] = {}
        self._width = self._of_width(1)

    def _of_width(self, rows: int) -> _Width:
        if rows not in self._widths:
            depth = DraftDepth(self.draft_tokens)
            self._widths[rows] = _Width(Payoff(self._clock), depth)
        return self._widths[rows]

    @property
    def worth_trying(self) -> bool:
        return self._width.payoff.worth_trying

    def enter(self, new_tokens: int, rows: int = 1) -> None:
        """At the start of each step of so many rows: times what the step before did."""
        width, now = self._of_width(rows), self._clock()
        if width is not self._width:
            self.interrupt()
            self._width = width
        # The first step behind a switch waits for what was dispatched ahead of it, or leaves its
        # own work to the next one.
        if width.entered_at is not None and new_tokens and not width.has_switched:
            elapsed = now - width.entered_at
            if width.checked:
                width.payoff.checked_step(new_tokens, elapsed)
                width.depth.took(width.checked, elapsed)
            elif width.looked:
                width.payoff.idle_step(new_tokens, elapsed)
            else:
                width.payoff.plain_step(new_tokens, elapsed)
                width.depth.took(1, elapsed)
        width.entered_at, width.checked, width.looked = now, 0.0, False
        width.has_switched = self.worth_trying is not width.tries
        width.tries = self.worth_trying

    def interrupt(self) -> None:
        """Something else ran (a prefill chunk, other rows): the time until now says nothing."""
        self._width.entered_at = None

    def draft(self, sequence: Sequence) -> list[int]:
        """A guess at what follows all tokens read so far, no longer than it may still grow."""
        self._width.looked = True
        room = sequence.max_tokens - len(sequence.output_ids)
        if room <= 0:
            return []
        if self.one_sequence and sequence not in self._known:
            self._known.clear()
        known = self._known.get(sequence)
        if known is None:
            known = self._known[sequence] = _Known(sequence, self._make_drafter())
        prompt, told = sequence.prompt_ids, known.num_told
        missing = prompt[told:] + sequence.output_ids[max(0, told - len(prompt)) :]
        known.drafter.extend(missing)
        known.num_told += len(missing)
        return known.drafter.propose(min(self._width.depth.best(), room))

    def check(
        self,
        model: Any,
        caches: list[Any],
        sampling: RowSampling,
        known: list[int],
        draft: list[int],
        alike: bool = False,
    ) -> Checked:
        """`known`: the tokens that the caches lack, of which the last is pending. Evaluates.

        `alike`: each token as a row of its own, with the bits of a step without a draft.
        """
        fed = [*known, *draft]
        round = Round(caches, fed)
        inputs = mx.array(fed, dtype=mx.int32)
        rows = draft_rows(caches, len(fed)) if alike else None
        if rows is None:
            logits = model(inputs[None], cache=caches)[0]  # (known + draft, V)
        else:
            logits = model(inputs[:, None], cache=rows)[:, -1]
        logits, checked = logits[len(known) - 1 :], inputs[len(known) - 1 :]
        drawn = sample(logits, checked, [sampling] * len(logits)).tolist()
        num_held = self._judge(sampling, draft, drawn)
        round.keep(len(known) + num_held)
        self._width.checked = len(fed)
        return Checked(draft[:num_held], drawn[num_held], round)

    def _judge(self, sampling: RowSampling, draft: list[int], drawn: list[int]) -> int:
        """How many tokens of a draft hold; the noise of the others is used again."""
        num_held = 0
        while num_held < len(draft) and drawn[num_held] == draft[num_held]:
            num_held += 1
        sampling.take_back(len(draft) - num_held)
        if draft:
            self._width.depth.checked(len(draft), num_held)
        return num_held

    def check_rows(
        self,
        forward: Callable[[mx.array, list[int]], mx.array],
        rows: list[tuple[RowSampling, int, list[int]]],
    ) -> list[CheckedRow]:
        """Of several rows each one's sampling, pending token and draft, which may be empty.
        `forward` takes the tokens and how many are each row's. Evaluates."""
        counts = [1 + len(draft) for _, _, draft in rows]
        fed = mx.array([t for _, pending, draft in rows for t in (pending, *draft)], mx.int32)
        samplings = [s for (s, _, _), count in zip(rows, counts, strict=True) for _ in range(count)]
        drawn = sample(forward(fed, counts), fed, samplings).tolist()
        self._width.checked = sum(counts) / len(rows)
        found, start = [], 0
        for (sampling, _, draft), count in zip(rows, counts, strict=True):
            own = drawn[start : start + count]
            num_held = self._judge(sampling, draft, own)
            found.append(CheckedRow(draft[:num_held], own[num_held], len(draft) - num_held))
            start += count
        return found

    def forget(self, sequence: Sequence) -> None:
        self._known.pop(sequence, None)

    def forget_all(self) -> None:
        self._known.clear()
