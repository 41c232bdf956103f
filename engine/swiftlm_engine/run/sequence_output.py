"""One sequence's way from tokens to text events, and how it is built from a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass, field

import mlx.core as mx

from swiftlm_engine.messages import (
    Delta,
    EndReason,
    Event,
    Finished,
    GenerateJob,
    Logprob,
    Timings,
    ToolCallPart,
    Usage,
)
from swiftlm_engine.prompt.prepare import Prepared, Rendered
from swiftlm_engine.run.decode_batch import Row, RowToken
from swiftlm_engine.run.prompt_scores import ScoredToken
from swiftlm_engine.sampling.logprobs import TokenLogprob
from swiftlm_engine.sampling.row import RowSampling
from swiftlm_engine.schedule.checkpoints import checkpoints, shared_length
from swiftlm_engine.schedule.sequence import FinishReason, Sequence
from swiftlm_engine.text import events as text
from swiftlm_engine.text.detokenizer import TokenTexts
from swiftlm_engine.text.markers import unmarked
from swiftlm_engine.text.output_parser import OutputParser

_WHOLE = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS)
SCORES_AT_ONCE = 128  # of a prompt's tokens in one message


@dataclass(slots=True, eq=False)
class SequenceOutput:
    job: GenerateJob
    sequence: Sequence
    parser: OutputParser
    texts: TokenTexts
    row: Row
    eos_ids: frozenset[int]
    remember: Callable[[OutputParser, str], None]
    closing_ids: tuple[int, ...]  # what ends its thoughts
    answering_ids: tuple[int, ...]  # what does so where it thinks again at once
    thinking: bool = False  # the prompt ends inside an open thinking block
    echo_text: str = ""
    warnings: tuple[str, ...] = ()
    ended: FinishReason | None = None
    announced: bool = False  # its client has its first event
    _num_taken: int = 0
    _closing: bool = False  # the thinking budget is spent and its end is being fed
    _closed: bool = False  # that has happened before
    _held_logprobs: list[Logprob] = field(default_factory=list)
    _held_ids: list[int] = field(default_factory=list)

    @property
    def num_taken(self) -> int:
        """Tokens of its answer, as they are billed."""
        return self._num_taken

    def echo(self, scores: Sequence_[ScoredToken]) -> Iterator[Event]:
        """The prompt's text, and with it in parts that are quick to send what its tokens scored."""
        rows = [self._logprob(one.token_id, one.logprob, one.top) for one in scores]
        if self.echo_text or rows:
            yield self.event(Delta(self.echo_text, logprobs=tuple(rows[:SCORES_AT_ONCE])))
        for at in range(SCORES_AT_ONCE, len(rows), SCORES_AT_ONCE):
            yield self.event(Delta(logprobs=tuple(rows[at : at + SCORES_AT_ONCE])))

    def event(self, news: Delta | Finished) -> Event:
        return Event(self.sequence.request_id, self.sequence.index, news)

    def take(self, token: RowToken) -> list[Event]:
        """A token was read: the deltas it gives, and `ended` when it was the last."""
        if self.job.max_tokens == 0:  # only the prompt was asked for; a step always draws one
            self.ended = FinishReason.LENGTH
            return []
        self._num_taken += 1  # the sequence may be ahead: a checked pass reads several at once
        if token.token_id in self.eos_ids:
            self.ended = FinishReason.STOP
            if self.job.scores_prompt:  # who scores texts counts on a row for each token
                self._note(token)
            return []
        self._note(token)
        events = self._deltas(self.parser.push(token.token_id))
        if not self.parser.in_reasoning:
            self._closing = False
        elif self.parser.should_close_thinking and not self._closing:
            self.row.forced_ids = list(self.answering_ids if self._closed else self.closing_ids)
            self._closing = self._closed = True
        if self.parser.stopped or self._is_complete:
            self.ended = FinishReason.STOP
        elif self._num_taken >= self.sequence.max_tokens:
            self.ended = FinishReason.LENGTH
        return events

    @property
    def _is_complete(self) -> bool:
        """Nothing can follow but the ends, and those are ignored."""
        constraint = self.row.constraint
        return self.job.ignore_eos and constraint is not None and constraint.is_done

    def close(self, reason: FinishReason, now: float) -> list[Event]:
        """The last deltas and the one terminal event."""
        natural = text.TextFinish.LENGTH if reason is FinishReason.LENGTH else text.TextFinish.STOP
        said = self.parser.finish(natural)
        if reason in _WHOLE:
            said += self.parser.unanswered()
        events = self._deltas(said, last=True)
        end = EndReason.ABORT
        if reason in _WHOLE:
            end = EndReason(str(self.parser.finish_reason or natural))
            self.remember(self.parser, self.job.cache_salt)
        events.append(
            self.event(
                Finished(
                    end,
                    self.usage(),
                    self.timings(now),
                    stop_sequence=self.parser.stop_sequence or "",
                )
            )
        )
        return events

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=len(self.sequence.prompt_ids),
            completion_tokens=self._num_taken,
            cached_tokens=self.sequence.cached,
            reasoning_tokens=getattr(self.parser, "reasoning_tokens", 0),
        )

    def timings(self, now: float) -> Timings:
        sequence = self.sequence
        first = sequence.first_token_at
        decode_s = 0.0 if first is None else now - first
        prefilled = sequence.prefilled - sequence.cached
        decoded = max(0, self._num_taken - 1)
        return Timings(
            queue_s=(sequence.started_at or now) - sequence.arrived_at,
            prefill_s=sequence.prefill_s,
            first_token_s=(first or now) - sequence.arrived_at,
            decode_s=decode_s,
            prefill_tokens_per_s=prefilled / sequence.prefill_s if sequence.prefill_s else 0.0,
            decode_tokens_per_s=decoded / decode_s if decode_s > 0 else 0.0,
            draft_tokens=self.row.num_drafted,
            draft_accepted=self.row.num_accepted,
        )

    # -- deltas

    def _note(self, token: RowToken) -> None:
        if self.job.return_token_ids:
            self._held_ids.append(token.token_id)
        if token.logprob is not None:
            row = self._logprob(token.token_id, token.logprob, token.top)
            self._held_logprobs.append(row)

    def _logprob(self, token_id: int, logprob: float, top: tuple[TokenLogprob, ...]) -> Logprob:
        others = (Logprob(t.token_id, self.texts.bytes_of(t.token_id), t.logprob) for t in top)
        return Logprob(token_id, self.texts.bytes_of(token_id), logprob, tuple(others))

    def _deltas(self, events: list[text.TextEvent], *, last: bool = False) -> list[Event]:
        """Text events as deltas; log-probabilities ride on the next delta that goes out."""
        deltas = [_as_delta(event) for event in events]
        if not (self._held_logprobs or self._held_ids) or not (deltas or last):
            return [self.event(delta) for delta in deltas]
        shown = self._num_shown_rows(last)
        rows, self._held_logprobs = self._held_logprobs[:shown], self._held_logprobs[shown:]
        ids, self._held_ids = self._held_ids, []
        if rows or ids:
            deltas = deltas or [Delta()]
            deltas[0] = _with_tokens(deltas[0], rows, ids)
        return [self.event(delta) for delta in deltas]

    def _num_shown_rows(self, last: bool) -> int:
        """How many of the log-probabilities held are of text that is shown, or is no text: those
        of a stop string are not."""
        count = len(self._held_logprobs)
        if not count:
            return 0
        if self.parser.stop_sequence is not None and not last:
            return 0  # what is cut is known at the end
        unshown = len(unmarked(self.parser.unshown).encode("utf-8", "replace"))
        while count and unshown:
            row = self._held_logprobs[count - 1]
            length = 0 if row.token_id in self.texts.skipped_ids else len(row.token)
            if length > unshown:
                break
            unshown -= length
            count -= 1
        return count


def _as_delta(event: text.TextEvent) -> Delta:
    match event:
        case text.ContentDelta(text=content):
            return Delta(content=content)
        case text.ReasoningDelta(text=reasoning):
            return Delta(reasoning=reasoning)
        case text.ToolCallStart(index=index, id=call_id, name=name):
            return Delta(tool_calls=(ToolCallPart(index, call_id, name),))
        case text.ToolCallDelta(index=index, arguments_fragment=fragment):
            return Delta(tool_calls=(ToolCallPart(index, arguments=fragment),))


def _with_tokens(delta: Delta, logprobs: list[Logprob], ids: list[int]) -> Delta:
    return Delta(delta.content, delta.reasoning, delta.tool_calls, tuple(logprobs), tuple(ids))


MakeParser = Callable[[Prepared], OutputParser]


@dataclass(frozen=True, slots=True)
class SequenceOutputFactory:
    """For one model. Called on the engine thread, as it makes arrays."""

    make_parser: MakeParser
    remember: Callable[[OutputParser, str], None]  # told when an answer is complete
    closing_ids: tuple[int, ...]  # what ends the thoughts of this model
    answering_ids: tuple[int, ...]  # what ends them for good
    newline_ids: tuple[int, ...]
    texts: TokenTexts
    eos_ids: frozenset[int]
    vocab_size: int
    needs_checkpoints: bool  # some layer cannot go back to an earlier position

    def __call__(self, prepared: Prepared, arrived_at: float) -> list[SequenceOutput]:
        return [self._choice(prepared, i, arrived_at) for i in range(prepared.job.n)]

    def _choice(self, prepared: Prepared, index: int, arrived_at: float) -> SequenceOutput:
        job, prompt = prepared.job, prepared.prompt
        boundaries = self._boundaries(prompt)
        sequence = Sequence(
            job.request_id,
            index,
            prompt.token_ids,
            prepared.max_tokens,
            arrived_at,
            boundaries=boundaries,
            system_length=0 if boundaries else shared_length(prompt.boundaries),
            keeps_chunks=self.needs_checkpoints and not boundaries,
            deadline_at=None if job.deadline_s is None else arrived_at + job.deadline_s,
            client=job.client,
        )
        ends = self._end_ids(prepared)
        row = Row(
            sequence,
            RowSampling(
                prepared.sampling,
                prompt.token_ids,
                self.vocab_size,
                index,
                spared_ids=(*self.newline_ids, *self.eos_ids, *ends),
            ),
            top_logprobs=job.top_logprobs,
            constraint=prepared.constraints[index],
            banned_ids=self._banned(ends) if job.min_tokens else None,
            min_tokens=job.min_tokens,
            end_ids=ends,
        )
        return SequenceOutput(
            job,
            sequence,
            self.make_parser(prepared),
            self.texts,
            row,
            ends,
            self.remember,
            self.closing_ids,
            self.answering_ids,
            thinking=prompt.thinking_open,
            echo_text=prepared.echo_text,
            warnings=prompt.warnings,
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
