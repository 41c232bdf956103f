"""Builds what a prepared job needs to run: one sequence, row and parser for each choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from swiftlm_engine.brain.checkpoints import checkpoints
from swiftlm_engine.brain.sequence import Sequence
from swiftlm_engine.choice import Choice
from swiftlm_engine.decode_batch import Row
from swiftlm_engine.prepare import Prepared, Rendered
from swiftlm_engine.sampling.row import RowSampling
from swiftlm_engine.text.detokenizer import TokenTexts
from swiftlm_engine.text.output import OutputParser

MakeParser = Callable[[Prepared], OutputParser]


@dataclass(frozen=True, slots=True)
class ChoiceFactory:
    """For one model. Called on the engine thread, as it makes arrays."""

    make_parser: MakeParser
    remember: Callable[[OutputParser], None]  # told when an answer is complete
    closing_ids: tuple[int, ...]  # what ends the thoughts of this model
    texts: TokenTexts
    eos_ids: frozenset[int]
    vocab_size: int
    needs_checkpoints: bool  # some layer cannot go back to an earlier position

    def __call__(self, prepared: Prepared, arrived_at: float) -> list[Choice]:
        return [self._choice(prepared, i, arrived_at) for i in range(prepared.job.n)]

    def _choice(self, prepared: Prepared, index: int, arrived_at: float) -> Choice:
        job, prompt = prepared.job, prepared.prompt
        boundaries = self._boundaries(prompt)
        sequence = Sequence(
            job.request_id,
            index,
            prompt.token_ids,
            prepared.max_tokens,
            arrived_at,
            boundaries=boundaries,
            keeps_chunks=self.needs_checkpoints and not boundaries,
            deadline_at=None if job.deadline_s is None else arrived_at + job.deadline_s,
        )
        ends = self._end_ids(prepared)
        row = Row(
            sequence,
            RowSampling(prepared.sampling, prompt.token_ids, self.vocab_size, index),
            top_logprobs=job.top_logprobs,
            constraint=prepared.constraints[index],
            banned_ids=self._banned(ends) if job.min_tokens else None,
            min_tokens=job.min_tokens,
            end_ids=ends,
        )
        return Choice(
            job,
            sequence,
            self.make_parser(prepared),
            self.texts,
            row,
            ends,
            self.remember,
            self.closing_ids,
            thinking=prompt.thinking_open,
            echo_text=prepared.echo_text,
        )

    def _banned(self, ends: frozenset[int]) -> mx.array | None:
        # A configuration may name an end that the model has no logit for.
        inside = sorted(token_id for token_id in ends if token_id < self.vocab_size)
        return mx.array(inside) if inside else None

    def _boundaries(self, prompt: Rendered) -> tuple[int, ...]:
        if not self.needs_checkpoints:
            return ()
        return checkpoints(prompt.boundaries, len(prompt.token_ids) - 1)

    def _end_ids(self, prepared: Prepared) -> frozenset[int]:
        asked = frozenset(prepared.job.stop_token_ids)
        return asked if prepared.job.ignore_eos else self.eos_ids | asked
