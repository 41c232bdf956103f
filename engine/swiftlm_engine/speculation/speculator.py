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


class Speculator:
    """Serves one sequence at a time: in a batch the other rows pay for the longer pass."""

    def __init__(
        self,
        make_drafter: Callable[[], Drafter],
        draft_tokens: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.draft_tokens = draft_tokens
        self._make_drafter = make_drafter
        self._payoff = Payoff(clock)
        self._depth = DraftDepth(draft_tokens)
        self._last_looked = False  # for a draft
        self._last_fed = 0  # tokens in the last checked pass
        self._known: _Known | None = None
        self._last_entry: float | None = None
        self._last_checked = False
        self._tries = False
        self._has_switched = False

    @property
    def worth_trying(self) -> bool:
        return self._payoff.worth_trying

    def enter(self, new_tokens: int) -> None:
        """At the start of each step of a lone row: times what the step before did."""
        now = self._payoff.now()
        # The first step behind a switch waits for what was dispatched ahead of it, or leaves its
        # own work to the next one.
        if self._last_entry is not None and new_tokens and not self._has_switched:
            elapsed = now - self._last_entry
            if self._last_checked:
                self._payoff.checked_step(new_tokens, elapsed)
                self._depth.took(self._last_fed, elapsed)
            elif self._last_looked:
                self._payoff.idle_step(new_tokens, elapsed)
            else:
                self._payoff.plain_step(new_tokens, elapsed)
                self._depth.took(new_tokens, elapsed)
        self._last_entry, self._last_checked, self._last_looked = now, False, False
        self._has_switched = self.worth_trying is not self._tries
        self._tries = self.worth_trying

    def interrupt(self) -> None:
        """Something else ran (a prefill chunk, other rows): the time until now says nothing."""
        self._last_entry = None

    def draft(self, sequence: Sequence) -> list[int]:
        """A guess at what follows all tokens read so far, no longer than it may still grow."""
        self._last_looked = True
        room = sequence.max_tokens - len(sequence.output_ids)
        if room <= 0:
            return []
        known = self._known
        if known is None or known.sequence is not sequence:
            known = self._known = _Known(sequence, self._make_drafter())
        prompt, told = sequence.prompt_ids, known.num_told
        missing = prompt[told:] + sequence.output_ids[max(0, told - len(prompt)) :]
        known.drafter.extend(missing)
        known.num_told += len(missing)
        return known.drafter.propose(min(self._depth.best(), room))

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
        num_held = 0
        while num_held < len(draft) and drawn[num_held] == draft[num_held]:
            num_held += 1
        sampling.take_back(len(draft) - num_held)
        round.keep(len(known) + num_held)
        self._depth.checked(len(draft), num_held)
        self._last_checked, self._last_fed = True, len(fed)
        return Checked(draft[:num_held], drawn[num_held], round)

    def forget(self, sequence: Sequence) -> None:
        if self._known is not None and self._known.sequence is sequence:
            self._known = None
