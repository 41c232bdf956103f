"""The engine: sequences in, events out, one step at a time.

`step` is the whole story: plan, run, apply. Owned by the engine thread.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass
from typing import Protocol

from swiftlm_engine.messages import (
    EndReason,
    EngineFault,
    Event,
    FaultKind,
    Finished,
    LoadProgress,
    Started,
)
from swiftlm_engine.prompt.prepare import Prepared
from swiftlm_engine.run.decode_batch import RowToken
from swiftlm_engine.run.event_bridge import EventBuffer
from swiftlm_engine.run.runner import RowEnd, Runner
from swiftlm_engine.run.sequence_output import SequenceOutput
from swiftlm_engine.schedule.rates import MeasuredRate
from swiftlm_engine.schedule.scheduler import QueueFull, Scheduler
from swiftlm_engine.schedule.sequence import FinishReason, Phase, Sequence
from swiftlm_engine.schedule.step import StepPlan, StepResult
from swiftlm_engine.streaming.reader import FilesChanged

log = logging.getLogger(__name__)

# A device fault is sticky: whatever runs next on it is wrong or hangs. The process must go.
DEVICE_FAULTS = ("[METAL] Command buffer execution failed", "CUDA error", "cudaError")


def ends_process(error: BaseException) -> bool:
    """No step can succeed behind it: the GPU failed, or the weights on disk are others now."""
    if isinstance(error, FilesChanged):
        return True
    return isinstance(error, RuntimeError) and any(mark in str(error) for mark in DEVICE_FAULTS)


class ChoiceMaker(Protocol):
    """Builds the choices of a prepared job (see `choices.py`)."""

    def __call__(self, prepared: Prepared, arrived_at: float) -> list[SequenceOutput]: ...


@dataclass(slots=True)
class Counters:
    """Totals since the model was loaded."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    aborted: int = 0
    failed: int = 0
    steps: int = 0


class StepLoop:
    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        make_choices: ChoiceMaker,
        event_buffer: EventBuffer,
        clock: Callable[[], float] = time.monotonic,
        kv_budget_bytes: int = 0,
    ) -> None:
        """A budget of 0 is unlimited."""
        self.scheduler = scheduler
        self.runner = runner
        self.kv_budget_bytes = kv_budget_bytes
        self.counters = Counters()
        self._make_choices = make_choices
        self._event_buffer = event_buffer
        self._clock = clock
        self._choices: dict[tuple[str, int], SequenceOutput] = {}
        self._decoded = MeasuredRate()
        self._prefilled = MeasuredRate()

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def choices(self) -> tuple[SequenceOutput, ...]:
        return tuple(self._choices.values())

    def submit(self, prepared: Prepared) -> None:
        """Queues a job. Raises `EngineFault` when the line is full or it can never fit."""
        job = prepared.job
        if job.scores_prompt and self.runner.is_split:
            message = "logprobs of a prompt are not made by a model that is split over machines"
            raise EngineFault(FaultKind.UNSUPPORTED, message, param="logprobs")
        choices = self._make_choices(prepared, self._clock())
        self._check_memory(choices[0].sequence)
        try:
            self.scheduler.add([choice.sequence for choice in choices])
        except QueueFull as full:
            wait = round(full.retry_after_s)
            message = f"{full}; try again in {wait} s"
            raise EngineFault(FaultKind.BUSY, message, retry_after_s=wait) from full
        self.counters.requests += 1
        salt = None if job.no_cache else job.cache_salt.encode()
        self.runner.set_salt(job.request_id, salt)
        if job.scores_prompt:
            self.runner.scores.ask(job.request_id, job.top_logprobs or 0, salt)
        self.runner.set_images(job.request_id, prepared.prompt.images)
        for choice in choices:
            self._choices[choice.sequence.key] = choice

    def abort(self, request_id: str) -> bool:
        return self.scheduler.abort(request_id)

    def step(self) -> None:
        """One turn: plan, run, apply."""
        plan = StepPlan()
        try:
            plan = self.scheduler.plan()  # opens caches: a prefix may come from the disk
            self._let_go(plan)
            result = self._run(plan)
        except RuntimeError as error:
            self._fail_step(error, plan)
            return
        self.scheduler.apply(plan, result)
        self.counters.steps += 1

    def _let_go(self, plan: StepPlan) -> None:
        for sequence in plan.gone:
            self._leave(sequence)
        for sequence in plan.preempted:
            log.info("request %s gives its memory back and waits", sequence.request_id)
            self.runner.preempt(sequence)

    def _run(self, plan: StepPlan) -> StepResult:
        joined = self._start_decoding(plan)
        started = time.perf_counter()
        finished, tokens = self._decode(joined)
        # A first token that is already on its way must not wait for somebody's long prefill.
        while any(not chunk.is_short for chunk in plan.chunks) and self.runner.batch.has_fresh:
            more, count = self._decode()
            finished += more
            tokens += count
        decode_s = time.perf_counter() - started
        if plan.chunks:  # they may take a whole slice
            self._event_buffer.flush()
        passes = self.runner.prefill(plan.chunks)
        for chunk in plan.chunks:
            self._prefilled.count(chunk.count, self._clock())
            self._report_progress(chunk.sequence, chunk.count)
        return StepResult(passes, tokens, decode_s, tuple(finished))

    def _start_decoding(self, plan: StepPlan) -> list[Sequence]:
        """Returns those whose clients have heard nothing yet."""
        rows = {row.sequence.key for row in self.runner.batch.rows}
        new = [sequence for sequence in plan.decode if sequence.key not in rows]
        if new:
            self.runner.start_decode([self._choices[sequence.key].row for sequence in new])
        # One that was preempted before its first token was read has been announced.
        return [sequence for sequence in new if not self._choices[sequence.key].announced]

    def _decode(
        self, joined: Sequence_[Sequence] = ()
    ) -> tuple[list[tuple[Sequence, FinishReason]], int]:
        """One decode step; tells clients their news, ends included, and takes those rows out."""
        tokens = self.runner.decode()
        for sequence in joined:  # not before: telling takes time from dispatching a first token
            self._announce(sequence)
        events: list[Event] = []
        is_first = False
        finished: list[tuple[Sequence, FinishReason]] = []
        now = self._clock()
        overrun: Counter[tuple[str, int]] = Counter()
        for token in tokens:
            choice = self._choices[token.row.sequence.key]
            if choice.ended is not None:  # a checked pass went past the end of the text
                overrun[choice.sequence.key] += 1
                continue
            if choice.sequence.first_token_at is None:
                choice.sequence.first_token_at = now
                is_first = True
            events += self._take(choice, token)
            if choice.ended is not None:
                finished.append((choice.sequence, choice.ended))
        self._decoded.count(len(tokens), now)
        ended = [(self._choices.pop(sequence.key), reason) for sequence, reason in finished]
        for choice, reason in ended:
            events += self._last_words(choice, reason)
        tell = self._event_buffer.emit if is_first or ended else self._event_buffer.buffer
        tell(events)  # one message for all that a step has to tell
        if ended:  # after that: keeping what was computed takes as long as a step
            self._take_out(ended, overrun)
        self.runner.keep_prompts()
        return finished, len(tokens)

    def _take(self, choice: SequenceOutput, token: RowToken) -> list[Event]:
        before = choice.num_taken
        try:
            return choice.take(token)
        except Exception:
            # One request's text must never end the loop that serves the others.
            log.exception("request %s failed while its text was parsed", choice.job.request_id)
            choice.ended = FinishReason.ERROR
            return []
        finally:
            self.counters.completion_tokens += choice.num_taken - before

    def decode_speed(self, now: float) -> float:
        """Tokens per second of all sequences together, over the last seconds."""
        return self._decoded.tokens_per_s(now)

    def prefill_speed(self, now: float) -> float:
        return self._prefilled.tokens_per_s(now)

    # -- news

    def _announce(self, sequence: Sequence) -> None:
        """The first event of a choice, once its prompt is in the cache."""
        note = self.runner.notes.get(sequence.key, "")
        self.counters.prompt_tokens += len(sequence.prompt_ids)
        self.counters.cached_tokens += sequence.cached
        choice = self._choices[sequence.key]
        choice.announced = True
        events = [
            Event(
                sequence.request_id,
                sequence.index,
                Started(
                    len(sequence.prompt_ids),
                    sequence.cached,
                    note,
                    choice.thinking,
                    choice.warnings,
                ),
            )
        ]
        self._event_buffer.emit(events)
        for echo in choice.echo(self.runner.scores.take(sequence)):
            self._event_buffer.emit([echo])

    def _report_progress(self, sequence: Sequence, chunk_tokens: int) -> None:
        done = sequence.prefilled + chunk_tokens
        if done < sequence.num_prefill:
            news = LoadProgress(done, len(sequence.prompt_ids))
            self._event_buffer.emit([Event(sequence.request_id, sequence.index, news)])

    # -- ends

    def _take_out(
        self, ended: list[tuple[SequenceOutput, FinishReason]], overrun: Counter[tuple[str, int]]
    ) -> None:
        self.runner.close_rows(
            [
                RowEnd(choice.row, reason is not FinishReason.ERROR, overrun[choice.sequence.key])
                for choice, reason in ended
            ]
        )
        for choice, _ in ended:
            self._forget(choice.sequence.request_id)

    def _last_words(self, choice: SequenceOutput, reason: FinishReason) -> list[Event]:
        if reason is not FinishReason.ERROR:
            try:
                return choice.close(reason, self._clock())
            except Exception:  # as in `_take`
                log.exception("request %s failed at its end", choice.job.request_id)
        self.counters.failed += 1
        fault = EngineFault(FaultKind.INTERNAL, "the reply could not be parsed; see the log")
        return [failure(choice.sequence.request_id, choice.sequence.index, fault)]

    def _leave(self, sequence: Sequence) -> None:
        """Aborted or overdue: the scheduler has let it go already."""
        self.runner.close(sequence, keep=sequence.prefilled > 0)
        choice = self._choices.pop(sequence.key)
        self._forget(sequence.request_id)
        if sequence.finish_reason is FinishReason.MEMORY and sequence.output_ids:
            log.warning(
                "request %s ends after %d tokens: the KV budget of %.2f GB holds no more",
                sequence.request_id,
                len(sequence.output_ids),
                self.kv_budget_bytes / 1e9,
            )
            self._event_buffer.emit(self._last_words(choice, FinishReason.LENGTH))
            return
        self.counters.aborted += 1
        if sequence.finish_reason is FinishReason.DEADLINE:
            fault = EngineFault(
                FaultKind.DEADLINE,
                f"the request's deadline passed after {len(sequence.output_ids)} tokens",
            )
            self._event_buffer.emit([failure(sequence.request_id, sequence.index, fault)])
        elif sequence.finish_reason is FinishReason.MEMORY:
            fault = self._no_memory(sequence)
            self._event_buffer.emit([failure(sequence.request_id, sequence.index, fault)])
        else:
            self._event_buffer.emit(self._last_words(choice, FinishReason.ABORT))

    def _check_memory(self, sequence: Sequence) -> None:
        if self.scheduler.first_price(sequence) > self.kv_budget_bytes > 0:
            raise self._no_memory(sequence)

    def _no_memory(self, sequence: Sequence) -> EngineFault:
        """Of a request that cannot even start."""
        tokens = len(sequence.prompt_ids) + self.scheduler.first_tokens(sequence)
        needed = self.scheduler.first_price(sequence)
        short = max(0, needed - self.kv_budget_bytes)
        return EngineFault(
            FaultKind.NOT_ENOUGH_MEMORY,
            f"{tokens} tokens need {needed / 1e9:.2f} GB of KV cache, the budget is "
            f"{self.kv_budget_bytes / 1e9:.2f} GB, {short / 1e9:.2f} GB short; shorten the prompt, "
            "or load the model with --kv k4v3 or a larger --memory-budget",
        )

    def _fail_step(self, error: RuntimeError, plan: StepPlan) -> None:
        """The device refused a step: what it was about ends, what waits goes on. A sequence that
        was to leave may not have heard of its end, and nobody knows what a preempted one holds."""
        text = str(error)
        # Other ranks may have run a step that failed here: nobody knows what they hold.
        if self.runner.is_split or ends_process(error):
            raise error
        log.error("step failed, %d sequences lost: %s", len(self.scheduler.running), text)
        fault = EngineFault(FaultKind.INTERNAL, f"the model failed in this step: {text}")
        left = self._left()
        unheard = {s.key: s for s in (*plan.preempted, *left) if s.phase is Phase.WAITING}
        self._fail((*left, *self.scheduler.fail_running(tuple(unheard.values()))), fault)

    def _left(self) -> list[Sequence]:
        """Those that the scheduler has let go, or sent to wait, and that have not heard of it: they
        are in no plan where making it failed."""
        rows = {row.sequence.key for row in self.runner.batch.rows}
        return [
            choice.sequence
            for choice in self._choices.values()
            if choice.sequence.phase is Phase.FINISHED
            or (choice.sequence.phase is Phase.WAITING and choice.sequence.key in rows)
        ]

    def fail_all(self, fault: EngineFault) -> None:
        """Ends every request with one error event (shutdown, or the loop dies)."""
        self._fail(self.scheduler.fail_all(), fault)

    def _fail(self, sequences: tuple[Sequence, ...], fault: EngineFault) -> None:
        for sequence in sequences:
            if self._choices.pop(sequence.key, None) is None:
                continue  # it had ended already when the step broke
            self.counters.failed += 1
            self._forget(sequence.request_id)
            self._event_buffer.emit([failure(sequence.request_id, sequence.index, fault)])
        self.runner.reset()

    def _forget(self, request_id: str) -> None:
        if not any(key[0] == request_id for key in self._choices):
            self.runner.forget_request(request_id)


def failure(request_id: str, index: int, fault: EngineFault) -> Event:
    """The terminal event of a choice that failed."""
    return Event(request_id, index, Finished(EndReason.ERROR, fault=fault))
