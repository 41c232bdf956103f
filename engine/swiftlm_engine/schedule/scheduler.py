"""Who runs in the next step. The rules, each with its reason, are in docs/scheduling.md.

1. At most `parallel` sequences hold KV (prefilling or decoding); the others wait, at most
   `max_queue` of them.
2. Every step decodes one token of every decoding sequence, and prefills for one slice of time.
3. A slice is `slice_s`, or the time of two decode steps or of two fixed parts of a pass where those
   take longer. It holds one chunk of a long prompt or several short prompts whole: decoding clients
   never wait longer for other people's prompts, a short prompt overtakes a long one between two
   chunks, and short ones that came together start decoding together. As long as nobody has read a
   token yet, short ones may take `BURST_S`. A prompt that is alone takes `LONE_SLICES`.
4. The next chunk goes to the sequence with the lowest score: seconds its prompt still takes, minus
   `ageing` times those it has waited. Short ones overtake; nobody starves.
5. A sequence is admitted when the gate grants its KV bytes: those of its prompt and of the next
   `reserve_tokens` it may decode; what it shares with running ones counts once. Memory that cannot
   be had now is waited for, and a smaller request may pass the one that waits, but not for ever:
   after `MEMORY_WAIT_S`, or twice the time of its prompt, nobody behind it is admitted before it.
   What does not fit although nobody runs ends.
6. A decoding sequence that outgrows its reservation asks the gate for the next `reserve_tokens`, or
   for half of them and so on; when there is nothing left for the next token, the youngest one
   gives its memory back and waits again (it loses no text), at least until the next step.
7. A sequence whose prefix is still being read from disk gets no chunk; the next one does.
8. Aborted and overdue sequences leave at the start of the next step, whatever they are doing.
9. Clients share: a place of a full line, a place among the running, and the time of prefill go to
   the client that has less of it. A client of which nothing runs gets the place of the youngest of
   the client of which most runs. One client alone may have everything.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from swiftlm_engine.brain.shares import PrefillTime, is_refused
from swiftlm_engine.schedule.kv_budget import Grant, KVBudget, UnlimitedKV
from swiftlm_engine.schedule.pass_cost import CHUNK_GRAIN, PassCost
from swiftlm_engine.schedule.rates import Rate
from swiftlm_engine.schedule.sequence import FinishReason, Phase, Sequence
from swiftlm_engine.schedule.step import SHORT_TOKENS, Chunk, StepPlan, StepResult

# A guess for the first pass of all: low, since a slow machine must not take ten seconds to tell.
FIRST_TOKENS_S = 512.0
# Slices in a pass of a prompt that is alone: only a newcomer or its own abort would wait for it.
LONE_SLICES = 2
# What such a pass may be larger, as a share, if nothing is left of the prompt then.
REST_SHARE = 0.25
# How long the first of a burst may wait for its first token while the others are prefilled: every
# step before they join is one at a small width, and costs nearly as much as one at the full width.
BURST_S = 1.0
# How long smaller requests may pass one that waits for memory, at least.
MEMORY_WAIT_S = 5.0


# What clients wait for without giving up; some ignore a Retry-After that is longer.
MAX_RETRY_AFTER_S = 60.0


class QueueFull(Exception):
    """The line is at its bound for this client; `retry_after_s` estimates when it has a place."""

    def __init__(self, waiting: int, own: int, retry_after_s: float) -> None:
        super().__init__(
            f"{waiting} requests are waiting, which is the limit, and {own} of them are yours"
        )
        self.waiting = waiting
        self.retry_after_s = retry_after_s


Price = Callable[[int, int], int]  # KV bytes for so many prompt and new tokens


@dataclass(frozen=True, slots=True)
class Limits:
    parallel: int = 8
    max_queue: int = 64
    prefill_chunk: int = 2048
    slice_s: float = 0.25
    ageing: float = 0.5
    reserve_tokens: int = 1024
    lookahead_tokens: int = 2  # one token is pending on the device, one is dispatched


class Scheduler:
    """Decides each step. One owner (the engine thread) calls everything here."""

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float],
        gate: KVBudget | None = None,
        open_sequence: Callable[[Sequence], int | None] = lambda _: 0,
        price: Price = lambda prompt, new: 0,
        held_already: Callable[[Sequence], int] = lambda _: 0,
    ) -> None:
        """`open_sequence` gives an admitted sequence its KV caches and returns how many prompt
        tokens a prefix hit spares it; None while that is not known yet: it is asked again in
        the next step. `held_already`: KV bytes of its prompt that running sequences hold in
        buffers which it would share."""
        self.limits = limits
        self.pass_cost = PassCost(FIRST_TOKENS_S)
        self._step_s = Rate(initial=60.0)  # decode steps per second, of whatever width
        self._clock = clock
        self._gate: KVBudget = gate if gate is not None else UnlimitedKV()
        self._open = open_sequence
        self._price = price
        self._held_already = held_already
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []  # hold KV: prefilling or decoding
        self._aborted: set[str] = set()
        self._prefill_time = PrefillTime()
        self._shared = False  # several clients have requests in the step that is planned
        self._short: set[str] = set()  # clients that memory was not granted when they asked last
        self._too_large: set[Sequence] = set()  # refused while nobody held memory
        self._beside_bytes = 0  # KV held beside the sequences (of texts that are embedded)

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
        client = sequences[0].client
        held = Counter(s.client for s in (*self._waiting, *self._running))
        limit = self.limits.max_queue + self.limits.parallel
        if is_refused(limit, held, client, len(sequences)):
            own = sum(s.client == client for s in self._waiting)
            raise QueueFull(len(self._waiting), own, self._retry_after_s(client))
        self._waiting.extend(sequences)

    def abort(self, request_id: str) -> bool:
        """Marks every sequence of the request; they leave with the next plan."""
        found = any(s.request_id == request_id for s in (*self._waiting, *self._running))
        if found:
            self._aborted.add(request_id)
        return found

    def plan(self) -> StepPlan:
        gone = self._collect_gone()
        clients = {s.client for s in (*self._waiting, *self._running)}
        self._prefill_time.keep(clients)
        self._shared = len(clients) > 1
        starved, preempted = self._grow()
        preempted = (*preempted, *self._make_places())
        chunks = self._next_chunks(preempted)
        decode = tuple(s for s in self._running if s.phase is Phase.DECODING)
        return StepPlan((*gone, *starved), preempted, decode, chunks)

    def apply(self, plan: StepPlan, result: StepResult) -> None:
        """Takes the step's outcome in; after this the next plan can be made."""
        if result.decode_tokens:
            self._step_s.observe(1, result.decode_s)
        for sequence, reason in result.finished:
            sequence.finish(reason)
            self._release(sequence)
        usual = self._usual_chunk()
        for done in result.passes:
            self.pass_cost.observe(done.tokens, done.seconds, usual=usual, depth=done.depth)
            for chunk in done.chunks:
                self._prefill_time.add(chunk.sequence.client, done.chunk_s)
                if chunk.sequence.phase is Phase.PREFILLING:
                    self._advance(chunk.sequence, chunk.count, done.chunk_s)

    def side_pass_tokens(self, left: int) -> int:
        """How many of so many tokens a pass beside the sequences takes (of an embedding): those of
        one slice; while nobody is here, as many as a prompt that is alone."""
        slice_s = lone_slice_s(self.limits.slice_s, self.pass_cost)
        if self.has_work or not self.pass_cost.is_measured:
            slice_s = self._slice_s()
        return min(left, self.pass_cost.chunk(slice_s, self.limits.prefill_chunk))

    def side_pass_done(self, tokens: int, seconds: float, depth: int) -> None:
        self.pass_cost.observe(tokens, seconds, usual=self._usual_chunk(), depth=depth)

    def hold_beside(self, kv_bytes: int) -> Grant:
        """KV for a text that takes several passes; what was held goes back to `release_beside`."""
        now = self._clock()
        if any(self._has_waited(sequence, now) for sequence in self._waiting):
            return Grant.LATER
        if self._gate.grant(kv_bytes):
            self._beside_bytes += kv_bytes
            return Grant.HELD
        return Grant.LATER if self._running or self._beside_bytes else Grant.NEVER

    def release_beside(self, kv_bytes: int) -> None:
        self._beside_bytes -= kv_bytes
        self._gate.release(kv_bytes)

    def fail_running(self, others: tuple[Sequence, ...] = ()) -> tuple[Sequence, ...]:
        """Ends everything that holds KV, and these others (a step broke); returns it."""
        return self._fail((*self._running, *others))

    def fail_all(self) -> tuple[Sequence, ...]:
        """Ends everything, also what waits (the engine stops); returns it."""
        return self._fail((*self._running, *self._waiting))

    def _fail(self, failed: tuple[Sequence, ...]) -> tuple[Sequence, ...]:
        for sequence in failed:
            sequence.finish(FinishReason.ERROR)
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
                sequence.finish(FinishReason.ABORT)
                gone.append(sequence)
            elif sequence.deadline_at is not None and now >= sequence.deadline_at:
                sequence.finish(FinishReason.DEADLINE)
                gone.append(sequence)
            elif sequence in self._too_large:
                sequence.finish(FinishReason.MEMORY)
                gone.append(sequence)
        self._too_large.clear()
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
            sequence.kv_bytes = sequence.reserved_tokens = 0

    # -- memory

    def first_price(self, sequence: Sequence) -> int:
        """KV bytes that must be free before it can start."""
        return self._price(len(sequence.prompt_ids), self.first_tokens(sequence))

    def first_tokens(self, sequence: Sequence) -> int:
        """New tokens that are reserved before it starts."""
        return min(sequence.max_tokens, self._first_reserve(sequence))

    def _first_reserve(self, sequence: Sequence) -> int:
        return sequence.num_resumed + self.limits.reserve_tokens

    def _grow(self) -> tuple[tuple[Sequence, ...], tuple[Sequence, ...]]:
        """Extends reservations before they are outgrown: who ends for want of memory, who waits."""
        starved: list[Sequence] = []
        preempted: list[Sequence] = []
        for sequence in [s for s in self._running if s.phase is Phase.DECODING]:
            while sequence in self._running and self._outgrows(sequence):
                if self._extend(sequence):
                    continue
                if len(self._running) == 1 and not self._beside_bytes:
                    sequence.finish(FinishReason.MEMORY)
                    self._release(sequence)
                    starved.append(sequence)
                else:
                    preempted.append(self._preempt_youngest())
        while self._gate.is_exceeded and len(self._running) > 1:
            preempted.append(self._preempt_youngest())  # it was to share what has gone
        return tuple(starved), tuple(preempted)

    def _outgrows(self, sequence: Sequence) -> bool:
        needed = len(sequence.output_ids) + self.limits.lookahead_tokens
        needed = min(needed, sequence.max_tokens)
        return needed > sequence.reserved_tokens

    def _extend(self, sequence: Sequence) -> bool:
        """Reserves for the next tokens; False when not even the next few can be had."""
        for step in self._reservations():
            if self._reserve(sequence, sequence.reserved_tokens + step):
                return True
        return False

    def _reservations(self) -> Iterator[int]:
        """Numbers of tokens to ask for: memory that is not enough for a whole step is used, too."""
        step = self.limits.reserve_tokens
        while step > self.limits.lookahead_tokens:
            yield step
            step //= 2
        yield self.limits.lookahead_tokens

    def _reserve(self, sequence: Sequence, new_tokens: int) -> bool:
        new = min(sequence.max_tokens, new_tokens)
        kv_bytes = self._price(len(sequence.prompt_ids), new)
        if not self._is_granted(sequence, kv_bytes - sequence.kv_bytes):
            return False
        sequence.kv_bytes, sequence.reserved_tokens = kv_bytes, new
        return True

    def _is_granted(self, sequence: Sequence, kv_bytes: int) -> bool:
        if self._gate.grant(kv_bytes):
            return True
        if sequence.phase is not Phase.WAITING or not self._running:
            return False
        shared = self._held_already(sequence)
        return shared > 0 and self._gate.grant(kv_bytes, shared)

    def _preempt_youngest(self) -> Sequence:
        """Of the client of which most runs: a newcomer would be the youngest of all."""
        held = Counter(s.client for s in self._running)
        victim = max(self._running, key=lambda s: (held[s.client], s.started_at or 0.0))
        self._release(victim)
        victim.preempt()
        self._waiting.append(victim)
        return victim

    # -- clients

    def _make_places(self) -> tuple[Sequence, ...]:
        """Who gives its place to a client of which nothing runs yet."""
        if not self._shared or len(self._running) < self.limits.parallel:
            return ()
        held = Counter(s.client for s in self._running)
        newcomers = {s.client for s in self._waiting} - held.keys()
        preempted: list[Sequence] = []
        while len(preempted) < len(newcomers) and max(held.values()) > 1:
            victim = self._preempt_youngest()
            held[victim.client] -= 1
            preempted.append(victim)
        return tuple(preempted)

    def _must_yield(self, sequence: Sequence) -> bool:
        """Clients with fewer sequences running want the places, or the memory, that are left."""
        if not self._shared:
            return False
        held = Counter(s.client for s in self._running)
        own = held[sequence.client]
        before = {s.client for s in self._waiting if held[s.client] < own}
        free = self.limits.parallel - len(self._running)
        return len(before) >= free or not before.isdisjoint(self._short)

    def _in_turn(self, asked: list[Sequence], now: float) -> list[Sequence]:
        """By score; behind it stands what its client has had more than others, and wants before."""
        asked = sorted(asked, key=lambda s: self._score(s, now))
        if not self._shared:
            return asked
        ahead: dict[str, float] = {}
        scores: dict[tuple[str, int], float] = {}
        for sequence in asked:
            before = ahead.get(sequence.client, self._prefill_time.lead(sequence.client))
            scores[sequence.key] = before + self._score(sequence, now)
            ahead[sequence.client] = before + self._prompt_s(sequence)
        return sorted(asked, key=lambda s: scores[s.key])

    # -- prefill

    def _next_chunks(self, preempted: tuple[Sequence, ...]) -> tuple[Chunk, ...]:
        """`preempted` wait for a step: their old caches are taken before new ones are opened."""
        now = self._clock()
        chunks: list[Chunk] = []
        left_s = self._slice_s()
        short_left_s = left_s if self._is_read() else max(left_s, BURST_S)
        started = [s for s in self._running if s.phase is Phase.PREFILLING]
        is_kept = False  # memory that comes free, for one that has waited for it
        asked = [s for s in (*started, *self._waiting) if s not in preempted]
        for sequence in self._in_turn(asked, now):
            if not sequence.is_open and any(_will_share(chunk, sequence) for chunk in chunks):
                continue  # in the next step it finds in the cache what this step prefills
            if sequence.phase is Phase.WAITING and not self._may_be_admitted(sequence):
                continue
            if sequence.phase is Phase.WAITING and (is_kept or not self._admit(sequence, now)):
                is_kept = is_kept or self._has_waited(sequence, now)
                continue
            if not sequence.is_open and not self._open_caches(sequence):
                continue
            if sequence.phase is Phase.DECODING:  # its whole prompt was cached
                continue
            count = sequence.next_boundary() - sequence.prefilled
            if sequence.remaining_prefill <= SHORT_TOKENS:  # whole: two passes would cost more
                if chunks and short_left_s < self._pass_s(sequence.remaining_prefill) / 2:
                    break
            elif chunks and left_s <= 2 * self.pass_cost.fixed_s:
                break
            else:
                count = self._cut(count, left_s)
            chunks.append(Chunk(sequence, sequence.prefilled, count))
            cost_s = self._chunk_s(chunks)
            left_s, short_left_s = left_s - cost_s, short_left_s - cost_s
            if short_left_s <= 0:
                break
        return tuple(chunks)

    def _is_read(self) -> bool:
        """Somebody has a part of an answer and waits for the next."""
        return any(s.phase is Phase.DECODING and s.output_ids for s in self._running)

    def _slice_s(self) -> float:
        """How long others may wait for prompts in this step."""
        if self._is_alone():
            return lone_slice_s(self.limits.slice_s, self.pass_cost)
        reading = any(s.phase is Phase.DECODING for s in self._running)
        two_steps_s = 2 / self._step_s.tokens_per_s if reading else 0.0
        return max(self.limits.slice_s, two_steps_s, 2 * self.pass_cost.fixed_s)

    def _is_alone(self) -> bool:
        """One sequence keeps nobody waiting, and what its passes take is no guess."""
        return self.pass_cost.is_measured and len(self._running) + len(self._waiting) == 1

    def _cut(self, tokens: int, seconds: float) -> int:
        """How many of so many tokens one pass takes."""
        largest = self.limits.prefill_chunk
        chunk = self.pass_cost.chunk(seconds, largest)
        takes_rest = self._is_alone() and tokens <= min(chunk * (1 + REST_SHARE), largest)
        return tokens if takes_rest else min(tokens, chunk)

    def _chunk_s(self, chunks: list[Chunk]) -> float:
        """What the last of these chunks adds to the slice."""
        *others, last = chunks
        if last.is_short and any(chunk.is_short for chunk in others):
            return last.count * self.pass_cost.per_token_s  # they share a pass
        return self._pass_s(last.count)

    def _pass_s(self, tokens: int) -> float:
        """A pass reads every weight, however few its tokens: never less than a decode step."""
        return max(self.pass_cost.seconds(tokens), 1 / self._step_s.tokens_per_s)

    def _usual_chunk(self) -> int:
        return self.pass_cost.chunk(self.limits.slice_s, self.limits.prefill_chunk)

    def _score(self, sequence: Sequence, now: float) -> float:
        return self._prompt_s(sequence) - self.limits.ageing * (now - sequence.arrived_at)

    def _prompt_s(self, sequence: Sequence) -> float:
        """Seconds that its prompt still takes."""
        tokens = sequence.remaining_prefill
        passes = math.ceil(tokens / self._usual_chunk())
        return passes * self.pass_cost.fixed_s + tokens * self.pass_cost.per_token_s

    def _may_be_admitted(self, sequence: Sequence) -> bool:
        """There is a place, and no other client's turn: else it waits for that, not for memory."""
        return len(self._running) < self.limits.parallel and not self._must_yield(sequence)

    def _admit(self, sequence: Sequence, now: float) -> bool:
        if not self._reserve_first(sequence):
            self._short.add(sequence.client)
            sequence.refused_at = now if sequence.refused_at is None else sequence.refused_at
            return False
        self._short.discard(sequence.client)
        self._waiting.remove(sequence)
        self._running.append(sequence)
        sequence.phase = Phase.PREFILLING
        if sequence.started_at is None:
            sequence.started_at = now
        return True

    def _reserve_first(self, sequence: Sequence) -> bool:
        if self._reserve(sequence, self._first_reserve(sequence)):
            return True
        if self._running or self._beside_bytes:
            return False
        # Nobody will give anything back: what there is must do.
        for step in self._reservations():
            if self._reserve(sequence, sequence.num_resumed + step):
                return True
        self._too_large.add(sequence)
        return False

    def _has_waited(self, sequence: Sequence, now: float) -> bool:
        """Smaller ones have passed it for long enough."""
        if sequence.refused_at is None:
            return False
        return now - sequence.refused_at >= max(MEMORY_WAIT_S, 2 * self._prompt_s(sequence))

    def _open_caches(self, sequence: Sequence) -> bool:
        spared = self._open(sequence)
        if spared is None:
            return False
        sequence.is_open = True
        sequence.prefilled = spared
        if sequence.num_resumed == 0:
            sequence.cached = spared
        self._advance(sequence, 0, 0.0)
        return True

    def _advance(self, sequence: Sequence, tokens: int, seconds: float) -> None:
        sequence.prefilled += tokens
        sequence.prefill_s += seconds
        if sequence.remaining_prefill == 0:
            sequence.phase = Phase.DECODING

    def _retry_after_s(self, client: str) -> float:
        """Until a place of this client comes free: its own prompts, in turn with other clients'."""
        held = [s for s in (*self._waiting, *self._running) if s.client == client]
        num_clients = len({s.client for s in (*self._waiting, *self._running)} | {client})
        own_s = num_clients * sum(self._prompt_s(s) for s in held)
        return min(max(1.0, own_s), MAX_RETRY_AFTER_S)


def lone_slice_s(slice_s: float, cost: PassCost) -> float:
    """How long a pass of a prompt that is alone may take."""
    return LONE_SLICES * max(slice_s, 2 * cost.fixed_s)


def _will_share(chunk: Chunk, sequence: Sequence) -> bool:
    """Whether prefilling `chunk` puts something into the prefix cache that `sequence` can use."""
    return sequence.begins_like(chunk.sequence, chunk.start + CHUNK_GRAIN)
