"""Who runs in the next step. The rules, each with its reason, are in docs/scheduling.md.

1. At most `parallel` sequences hold KV (prefilling or decoding); the others wait, at most
   `max_queue` of them.
2. Every step decodes one token of every decoding sequence, and prefills at most one chunk.
3. A chunk takes about `slice_s`, by the measured prefill rate: decoding clients never wait longer
   for somebody else's prompt, and a short prompt can overtake a long one between two chunks.
4. The next chunk goes to the sequence with the lowest score: tokens left to prefill, minus
   `ageing` times the tokens that could have been prefilled while it waited. Short ones overtake;
   nobody starves.
5. A sequence is admitted when the gate grants its KV bytes; memory that cannot be had now is
   waited for, and a later, smaller request may pass the one that waits until it has aged.
6. Aborted and overdue sequences leave at the start of the next step, whatever they are doing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from swiftlm_engine.brain.rates import Rate
from swiftlm_engine.brain.sequence import FinishReason, Phase, Sequence

# Chunks are cut to whole multiples, so that kernels see few different shapes.
CHUNK_GRAIN = 16


class QueueFull(Exception):
    """The waiting line is at its bound; `retry_after_s` estimates when a place comes free."""

    def __init__(self, waiting: int, retry_after_s: float) -> None:
        super().__init__(f"{waiting} requests are waiting, which is the limit")
        self.waiting = waiting
        self.retry_after_s = retry_after_s


class Gate(Protocol):
    """Admission by memory. `grant` reserves and says whether it could; `release` gives back."""

    def grant(self, kv_bytes: int) -> bool: ...

    def release(self, kv_bytes: int) -> None: ...


class OpenGate:
    """Grants everything: no budget was set."""

    def grant(self, kv_bytes: int) -> bool:
        return True

    def release(self, kv_bytes: int) -> None:
        return None


class BudgetGate:
    """Grants until the sum of reservations reaches the budget."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.reserved_bytes = 0

    def grant(self, kv_bytes: int) -> bool:
        if self.reserved_bytes + kv_bytes > self.budget_bytes:
            return False
        self.reserved_bytes += kv_bytes
        return True

    def release(self, kv_bytes: int) -> None:
        self.reserved_bytes -= kv_bytes


@dataclass(frozen=True, slots=True)
class Limits:
    parallel: int = 8
    max_queue: int = 64
    prefill_chunk: int = 2048
    slice_s: float = 0.25
    ageing: float = 0.5


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prefill tokens `start .. start + count` of one sequence."""

    sequence: Sequence
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step does, in this order: drop `gone`, decode `decode`, prefill `chunk`."""

    gone: tuple[Sequence, ...] = ()
    decode: tuple[Sequence, ...] = ()
    chunk: Chunk | None = None

    @property
    def idle(self) -> bool:
        return not (self.gone or self.decode or self.chunk)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What happened: tokens of the chunk with its seconds, and who finished in decode."""

    chunk_tokens: int = 0
    chunk_s: float = 0.0
    decode_tokens: int = 0
    decode_s: float = 0.0
    finished: tuple[tuple[Sequence, FinishReason], ...] = ()


class Scheduler:
    """Decides each step. One owner (the engine thread) calls everything here."""

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float],
        gate: Gate | None = None,
        open_sequence: Callable[[Sequence], int] = lambda _: 0,
    ) -> None:
        """`open_sequence` gives an admitted sequence its KV caches and returns how many prompt
        tokens a prefix hit spares it."""
        self.limits = limits
        self.prefill_rate = Rate(initial=2000.0)
        self.decode_rate = Rate(initial=30.0)
        self._clock = clock
        self._gate: Gate = gate if gate is not None else OpenGate()
        self._open = open_sequence
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []  # hold KV: prefilling or decoding
        self._aborted: set[str] = set()

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        return tuple(self._waiting)

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._running)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, sequences: list[Sequence]) -> None:
        """Queues the sequences of one request, all or none. Raises `QueueFull`."""
        free = self.limits.max_queue + self.limits.parallel - len(self._running)
        if len(self._waiting) + len(sequences) > free:
            raise QueueFull(len(self._waiting), self._retry_after_s())
        self._waiting.extend(sequences)

    def abort(self, request_id: str) -> bool:
        """Marks every sequence of the request; they leave with the next plan."""
        found = any(s.request_id == request_id for s in (*self._waiting, *self._running))
        if found:
            self._aborted.add(request_id)
        return found

    def plan(self) -> StepPlan:
        gone = self._collect_gone()
        chunk = self._next_chunk()
        decode = tuple(s for s in self._running if s.phase is Phase.DECODING)
        return StepPlan(gone, decode, chunk)

    def apply(self, plan: StepPlan, result: StepResult) -> None:
        """Takes the step's outcome in; after this the next plan can be made."""
        now = self._clock()
        self.prefill_rate.observe(result.chunk_tokens, result.chunk_s)
        self.decode_rate.observe(result.decode_tokens, result.decode_s)
        for sequence, reason in result.finished:
            sequence.finish(reason, now)
            self._release(sequence)
        if plan.chunk is not None and plan.chunk.sequence.phase is Phase.PREFILLING:
            self._advance(plan.chunk.sequence, result.chunk_tokens, result.chunk_s, now)

    def fail_running(self) -> tuple[Sequence, ...]:
        """Ends everything that holds KV (a step broke); returns it."""
        return self._fail(tuple(self._running))

    def fail_all(self) -> tuple[Sequence, ...]:
        """Ends everything, also what waits (the engine stops); returns it."""
        return self._fail((*self._running, *self._waiting))

    def _fail(self, failed: tuple[Sequence, ...]) -> tuple[Sequence, ...]:
        now = self._clock()
        for sequence in failed:
            sequence.finish(FinishReason.ERROR, now)
            self._release(sequence)
        return failed

    def check_integrity(self) -> None:
        """Raises AssertionError when a rule of this file is broken; for tests and idle checks."""
        assert len(self._running) <= self.limits.parallel
        assert all(s.phase in (Phase.PREFILLING, Phase.DECODING) for s in self._running)
        assert all(s.phase is Phase.WAITING for s in self._waiting)
        assert all(s.remaining_prefill == 0 for s in self._running if s.phase is Phase.DECODING)

    # -- leaving

    def _collect_gone(self) -> tuple[Sequence, ...]:
        now = self._clock()
        gone = []
        for sequence in (*self._waiting, *self._running):
            if sequence.request_id in self._aborted:
                sequence.finish(FinishReason.ABORT, now)
                gone.append(sequence)
            elif sequence.deadline_at is not None and now >= sequence.deadline_at:
                sequence.finish(FinishReason.DEADLINE, now)
                gone.append(sequence)
        for sequence in gone:
            self._release(sequence)
        self._aborted.clear()
        return tuple(gone)

    def _release(self, sequence: Sequence) -> None:
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        elif sequence in self._running:
            self._running.remove(sequence)
            self._gate.release(sequence.kv_bytes)

    # -- prefill

    def _next_chunk(self) -> Chunk | None:
        now = self._clock()
        started = [s for s in self._running if s.phase is Phase.PREFILLING]
        for sequence in sorted([*started, *self._waiting], key=lambda s: self._score(s, now)):
            if sequence.phase is Phase.WAITING and not self._admit(sequence, now):
                continue
            if sequence.phase is Phase.DECODING:  # its whole prompt was cached
                continue
            count = min(self._chunk_tokens(), sequence.next_boundary() - sequence.prefilled)
            return Chunk(sequence, sequence.prefilled, count)
        return None

    def _score(self, sequence: Sequence, now: float) -> float:
        waited = (now - sequence.arrived_at) * self.prefill_rate.tokens_per_s
        return sequence.remaining_prefill - self.limits.ageing * waited

    def _admit(self, sequence: Sequence, now: float) -> bool:
        if len(self._running) >= self.limits.parallel:
            return False
        if not self._gate.grant(sequence.kv_bytes):
            return False
        self._waiting.remove(sequence)
        self._running.append(sequence)
        sequence.phase = Phase.PREFILLING
        sequence.started_at = now
        sequence.cached = sequence.prefilled = self._open(sequence)
        self._advance(sequence, 0, 0.0, now)
        return True

    def _chunk_tokens(self) -> int:
        by_time = int(self.prefill_rate.tokens_per_s * self.limits.slice_s)
        grained = by_time // CHUNK_GRAIN * CHUNK_GRAIN
        return max(CHUNK_GRAIN, min(self.limits.prefill_chunk, grained))

    def _advance(self, sequence: Sequence, tokens: int, seconds: float, now: float) -> None:
        sequence.prefilled += tokens
        sequence.prefill_s += seconds
        if sequence.remaining_prefill == 0:
            sequence.phase = Phase.DECODING
            sequence.decoding_at = now

    def _retry_after_s(self) -> float:
        tokens = sum(s.remaining_prefill for s in (*self._waiting, *self._running))
        return max(1.0, tokens / max(self.prefill_rate.tokens_per_s, 1.0))
