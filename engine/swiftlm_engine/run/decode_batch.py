"""The sequences that decode together, and one step of them.

The next step is dispatched before the last tokens are read, so that the device never waits for
Python. Rows that constrain their next token (a grammar) need the last one first: for those the
forward pass is dispatched, the tokens are read while it runs, and only then is sampled. Where
nobody has a token yet, the first ones are read at once, and the next step is dispatched later.

Invariants: row i of `_inputs`, of every cache and of `_rows` is the same sequence. After `step` the
caches hold the prompt and all tokens that were reported, and `_inputs` one token more; of a `fresh`
row the caches lack the last token, which is in `_inputs`. Of a lone row whose drafts were rejected
they may lack a few more, which are fed with the next pass (`Row.behind`).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from swiftlm_engine.prefix.snapshot import leaves_of
from swiftlm_engine.ranks import SINGLE_PROCESS, Ranks
from swiftlm_engine.run.row_caches import Caches, Claim, RowCaches
from swiftlm_engine.sampling.logprobs import PendingLogprobs, TokenLogprob, pending
from swiftlm_engine.sampling.row import RowSampling, TokenConstraint
from swiftlm_engine.sampling.sampler import sample
from swiftlm_engine.schedule.sequence import Sequence
from swiftlm_engine.speculation.round import Round, needs_replay
from swiftlm_engine.speculation.speculator import Speculator

# Tokens that rejected drafts may leave to be fed again: then one step goes without a draft.
MAX_BEHIND = 16


@dataclass(slots=True, eq=False)
class Row:
    """One decoding sequence and what its next token depends on."""

    sequence: Sequence
    sampling: RowSampling
    top_logprobs: int | None = None
    constraint: TokenConstraint | None = None
    banned_ids: mx.array | None = None  # never sampled while min_tokens are not reached
    min_tokens: int = 0
    end_ids: frozenset[int] = frozenset()
    forced_ids: list[int] = field(default_factory=list)  # take the place of what was sampled
    fresh: bool = True  # its pending input is the last token of what is known, not a new one
    num_drawn: int = 0  # tokens of the answer so far, those that are still to be read included
    num_read: int = 0  # tokens read since it joined
    num_last_read: int = 0  # of those, in the last step
    num_drafted: int = 0  # tokens guessed ahead for it, and how many of them held
    num_accepted: int = 0
    may_replay: bool = True  # tokens of a rejected draft can be fed again at any time
    round: Round | None = None  # of the last pass, if it checked a draft
    logprobs: PendingLogprobs | None = None  # of the pending input

    @property
    def behind(self) -> list[int]:
        """Tokens that were reported and that the caches lack."""
        return self.round.behind if self.round is not None else []

    @property
    def may_not_end(self) -> bool:
        return self.num_drawn < self.min_tokens


@dataclass(frozen=True, slots=True)
class RowToken:
    """A token that was read, with its log-probability if the row asked for it."""

    row: Row
    token_id: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


class DecodeBatch:
    """Owned by the engine thread; every method runs there."""

    def __init__(
        self,
        model: Any,
        stream: Any,
        speculator: Speculator | None = None,
        ranks: Ranks = SINGLE_PROCESS,
        before_wait: Callable[[], None] = lambda: None,
        alike: bool = False,
    ) -> None:
        """`before_wait` is called when a step is built, before the device computes or is awaited:
        then others may have the interpreter's lock. `alike`: see `RowCaches`."""
        self._model = model
        self._stream = stream
        self._speculator = speculator
        self._rows: list[Row] = []
        self._ranks = ranks
        self._before_wait = before_wait
        self._caches = RowCaches(
            unpadded=ranks is SINGLE_PROCESS,  # the ranks of a group would have to agree
            # Drafts of several rows go through rows that are not padded.
            prefers_padding=mx.default_device().type == mx.DeviceType.cpu
            and (speculator is None or speculator.one_sequence),
            alike=alike,
        )
        self._alike = alike
        self._inputs: mx.array | None = None  # (B,)
        self._greedy = False  # every rank of a group draws this step's tokens for itself
        self._known: mx.array | None = None  # inputs that every rank has drawn

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(self._rows)

    @property
    def has_fresh(self) -> bool:
        """Some row's first token since it joined has been dispatched or is due, but not read."""
        return any(row.num_read == 0 for row in self._rows)

    def all_caches(self) -> list[Caches]:
        """Per layer the cache of all rows, or a list per row where they cannot be merged."""
        return self._caches.all()

    def caches_nbytes(self) -> int:
        return self._caches.nbytes

    def claims(self) -> dict[tuple[str, int], list[Claim]]:
        """By sequence: see `RowCaches`."""
        keys = (row.sequence.key for row in self._rows)
        return dict(zip(keys, self._caches.claims(), strict=True))

    def add(self, rows: list[Row], caches: list[Caches]) -> None:
        """Takes over each row's caches, which hold all but its last prompt token."""
        self._catch_up()
        first = mx.array([row.sequence.first_input_id for row in rows], dtype=mx.int32)
        self._inputs = first if self._inputs is None else mx.concatenate([self._inputs, first])
        for row in rows:
            row.num_drawn = len(row.sequence.output_ids)
        self._caches.extend(caches)
        self._rows += rows

    def remove(self, rows: list[Row], overruns: Sequence_[int] = ()) -> list[Caches]:
        """Takes rows out and returns the caches of each, for single use again.

        Their last `overruns` tokens are taken back: a checked pass went past the end.
        """
        counts = dict(zip(map(id, rows), overruns, strict=False))
        if len(self._rows) > 1 and any(counts.values()):
            self._caches.take_back([counts.get(id(row), 0) for row in self._rows])
        elif any(counts.values()):
            [lone] = self._rows
            assert lone.round is not None
            lone.round.keep_fewer(counts[id(lone)])
        self._catch_up()
        ats = [self._rows.index(row) for row in rows]
        keep = [i for i in range(len(self._rows)) if i not in ats]
        caches = self._caches.remove_all(ats)
        self._rows = [self._rows[i] for i in keep]
        assert self._inputs is not None
        self._inputs = self._inputs[mx.array(keep)] if keep else None
        return caches

    def preempt(self, row: Row) -> Caches:
        """Takes a row out so that it can be added again and go on as if nothing had happened."""
        [caches] = self.remove([row])
        if not row.fresh:
            row.sampling.rewind()
        row.fresh, row.num_read, row.logprobs = True, 0, None
        return caches

    def clear(self) -> None:
        """Forgets everything (a step broke)."""
        self._rows, self._inputs = [], None
        self._caches.clear()

    def step(self) -> list[RowToken]:
        """Dispatches the next token of every row and reads the pending ones.

        A fresh row has nothing to read yet; its first token comes with the next step.
        """
        if not self._rows:
            return []
        self._force_tokens()
        assert self._inputs is not None
        with mx.stream(self._stream):
            if self._speculates():
                if len(self._rows) > 1:
                    return self._checked_rows_step()
                return self._checked_step(self._rows[0])
            self._catch_up()
            if self._awaits_first_tokens():
                return self._read_first_tokens()
            logits = self._forward(self._inputs)
            if any(row.constraint is not None for row in self._rows):
                self._compute(logits)
                tokens = self._read()
                self._advance_constraints(tokens)
                self._dispatch(logits)
                return tokens
            pending_inputs, pending_logprobs = self._inputs, [row.logprobs for row in self._rows]
            self._dispatch(logits)
            return self._read_from(pending_inputs, pending_logprobs)

    # -- the first token

    def _awaits_first_tokens(self) -> bool:
        rows = self._rows
        return all(row.num_read == 0 and not row.fresh and row.constraint is None for row in rows)

    def _read_first_tokens(self) -> list[RowToken]:
        """Clients wait for these: building the next step first would cost them its milliseconds."""
        tokens = self._read()
        for row in self._rows:
            row.fresh = True
        return tokens

    # -- several tokens at once

    def _speculates(self) -> bool:
        """Rows whose next draws depend on nothing but logits and their own noise."""
        if self._speculator is None:
            return False
        if len(self._rows) > 1 and (self._speculator.one_sequence or not self._caches.takes_drafts):
            self._speculator.interrupt()
            return False
        self._speculator.enter(sum(row.num_last_read for row in self._rows), len(self._rows))
        for row in self._rows:
            row.num_last_read = 0
        return self._speculator.worth_trying and all(self._is_free(row) for row in self._rows)

    def _is_free(self, row: Row) -> bool:
        if len(self._rows) > 1 and not row.may_replay:
            return False  # positions behind pictures are told by row
        bound = row.constraint is not None or row.top_logprobs is not None or row.forced_ids
        return not (bound or row.sampling.settings.needs_history or self._is_masked(row))

    def _checked_rows_step(self) -> list[RowToken]:
        """Several rows, with drafts or without, in one pass."""
        assert self._speculator is not None
        assert self._inputs is not None
        self._before_wait()
        tokens = self._read()
        pending = self._inputs.tolist()
        drafts = [self._draft(row, [one]) for row, one in zip(self._rows, pending, strict=True)]
        if not any(drafts):
            self._dispatch(self._forward(self._inputs))
            return tokens
        checked = self._speculator.check_rows(
            lambda fed, counts: self._caches.forward_drafts(self._model, fed, counts),
            [
                (row.sampling, one, draft)
                for row, one, draft in zip(self._rows, pending, drafts, strict=True)
            ],
        )
        self._caches.take_back([one.num_rejected for one in checked])
        for row, draft, one in zip(self._rows, drafts, checked, strict=True):
            tokens += self._take_held(row, draft, one.held)
        self._inputs = mx.array([one.drawn for one in checked], dtype=mx.int32)
        return tokens

    @staticmethod
    def _take_held(row: Row, draft: list[int], held: list[int]) -> list[RowToken]:
        row.num_drafted += len(draft)
        row.num_accepted += len(held)
        row.sequence.output_ids += held
        row.num_last_read += len(held)
        row.num_drawn = len(row.sequence.output_ids) + 1
        return [RowToken(row, token_id) for token_id in held]

    def _checked_step(self, row: Row) -> list[RowToken]:
        """Reads the pending token first; with a draft, one pass yields all of it that holds."""
        assert self._speculator is not None
        assert self._inputs is not None
        self._before_wait()
        tokens = self._read()
        pending = (row.sequence.output_ids or row.sequence.prompt_ids)[-1]
        known = [*row.behind, pending]
        draft = self._draft(row, known)
        if not draft:
            self._dispatch(self._forward_known(row, known))
            return tokens
        caches, sampling = self._caches.only, row.sampling
        checked = self._speculator.check(self._model, caches, sampling, known, draft, self._alike)
        row.round = checked.round
        tokens += self._take_held(row, draft, checked.held)
        self._inputs = mx.array([checked.drawn], dtype=mx.int32)
        return tokens

    def _draft(self, row: Row, known: list[int]) -> list[int]:
        """No longer than what can be taken back, and nothing behind an end."""
        assert self._speculator is not None
        caches = self._caches.only if len(self._rows) == 1 else []  # of several any can be trimmed
        cannot = not row.may_replay and needs_replay(caches)
        if known[-1] in row.end_ids or cannot or len(known) > MAX_BEHIND:
            return []
        draft = self._speculator.draft(row.sequence)
        draft = draft[: max(0, _room_to_take_back(caches) - len(known))]
        end = next((at for at, token in enumerate(draft) if token in row.end_ids), len(draft))
        return draft[: end + 1]

    def _forward_known(self, row: Row, known: list[int]) -> mx.array:
        """Logits (1, V) behind the last of these tokens, which the caches of a lone row lack."""
        row.round = None
        if len(known) == 1:
            assert self._inputs is not None
            return self._forward(self._inputs)
        inputs = mx.array([known], dtype=mx.int32)
        logits: mx.array = self._model(inputs, cache=self._caches.only)
        return logits[:, -1, :]

    def _catch_up(self) -> None:
        """Feeds what the caches of a lone row lack, before anything but another draft."""
        if self._speculator is None:
            return
        for row in self._rows:
            if row.behind:
                with mx.stream(self._stream):
                    self._model(mx.array([row.behind], dtype=mx.int32), cache=self._caches.only)
            row.round = None

    # -- the forward pass

    def _forward(self, inputs: mx.array) -> mx.array:
        """Logits (B, V) after the inputs (B,)."""
        # Another array, where rows came, left or were forced, is not what was drawn.
        known, self._greedy = inputs is self._known, self._is_greedy()
        told = self._ranks.decode(inputs, known=known, greedy=self._greedy)
        return self._caches.forward(self._model, told)

    def _is_greedy(self) -> bool:
        """What follows from the logits alone is drawn by every rank of a group."""
        if self._ranks is SINGLE_PROCESS:
            return False
        return all(
            row.sampling.settings.greedy and row.sampling.plain and not self._is_masked(row)
            for row in self._rows
        )

    def _dispatch(self, logits: mx.array) -> None:
        assert self._inputs is not None
        fed = self._inputs
        allowed = self._mask(logits)
        sampled = sample(allowed, fed, [row.sampling for row in self._rows]).astype(mx.int32)
        arrays = [sampled]
        for i, row in enumerate(self._rows):
            row.num_drawn += 1
            row.logprobs = None
            if row.top_logprobs is not None:
                row.logprobs = pending(logits[i : i + 1], sampled[i : i + 1], row.top_logprobs)
                arrays += row.logprobs.arrays()
        self._compute(*arrays)
        self._inputs = sampled
        self._known = sampled if self._greedy else None

    def _compute(self, *arrays: mx.array) -> None:
        self._before_wait()
        mx.async_eval(*arrays)

    def _mask(self, logits: mx.array) -> mx.array:
        """Logits with what rows must not take at -inf: grammars, and ends before min_tokens."""
        if not any(self._is_masked(row) for row in self._rows):
            return logits
        return mx.concatenate(
            [self._mask_row(logits[i : i + 1], row) for i, row in enumerate(self._rows)]
        )

    @staticmethod
    def _is_masked(row: Row) -> bool:
        early = row.banned_ids is not None and row.may_not_end
        return early or row.constraint is not None

    def _mask_row(self, logits: mx.array, row: Row) -> mx.array:
        if not self._is_masked(row):
            return logits
        if row.constraint is not None:
            logits = row.constraint.apply(logits)
        if row.banned_ids is None or not row.may_not_end:
            return logits
        open_ended = mx.put_along_axis(
            logits, row.banned_ids[None], mx.array(-mx.inf, logits.dtype), axis=-1
        )
        # A grammar that is complete allows ends only: then the answer is over, however short.
        is_over = mx.max(open_ended, axis=-1, keepdims=True) == -mx.inf
        return mx.where(is_over, logits, open_ended)

    # -- reading

    def _read(self) -> list[RowToken]:
        assert self._inputs is not None
        return self._read_from(self._inputs, [row.logprobs for row in self._rows])

    def _read_from(
        self, inputs: mx.array, logprobs: list[PendingLogprobs | None]
    ) -> list[RowToken]:
        tokens = []
        for row, token_id, lazy in zip(self._rows, inputs.tolist(), logprobs, strict=True):
            if row.fresh:
                row.fresh = False
                continue
            row.sequence.output_ids.append(token_id)
            row.num_read += 1
            row.num_last_read += 1
            if lazy is None:
                tokens.append(RowToken(row, token_id))
            else:
                chosen, top = lazy.read()
                tokens.append(RowToken(row, token_id, chosen, tuple(top)))
        return tokens

    @staticmethod
    def _advance_constraints(tokens: list[RowToken]) -> None:
        for token in tokens:
            if token.row.constraint is not None:
                token.row.constraint.advance(token.token_id)

    def _force_tokens(self) -> None:
        """Replaces pending samples by forced tokens (the end of a thinking budget)."""
        if not any(row.forced_ids and not row.fresh for row in self._rows):
            return
        assert self._inputs is not None
        ids = self._inputs.tolist()
        for i, row in enumerate(self._rows):
            if row.forced_ids and not row.fresh:
                ids[i] = row.forced_ids.pop(0)
        self._inputs = mx.array(ids, dtype=mx.int32)


def _room_to_take_back(caches: Caches) -> int:
    """Tokens that can be added and trimmed again without a trace; compressing caches bound it."""
    bounds = (getattr(cache, "tokens_before_flush", None) for cache in leaves_of(caches))
    return min((bound for bound in bounds if bound is not None), default=1 << 30)
