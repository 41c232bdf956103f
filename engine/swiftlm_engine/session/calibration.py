"""Measures a loaded model: prompts in chunks, steps of batches, memory. Runs on the MLX thread.

`measure` is a generator whose every turn takes about as long as one chunk or one step, so that
whoever drives it can stop between two turns when a request arrives. Its caches are its own: nothing
of it is seen by the scheduler or kept for a prefix. No cache of it ever holds more tokens than the
model's context: a position behind it may lie outside of the model's own tables.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TypeVar

import mlx.core as mx
import mlx.nn as nn

from swiftlm_engine.brain.calibration import Decoded, Prefilled, Record, Spread, choose
from swiftlm_engine.messages import EngineFault, FaultKind
from swiftlm_engine.run.decode_batch import DecodeBatch, Row
from swiftlm_engine.run.row_caches import Caches
from swiftlm_engine.sampling.row import RowSampling
from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.schedule.pass_cost import CHUNK_GRAIN, PassCost
from swiftlm_engine.schedule.scheduler import lone_slice_s
from swiftlm_engine.schedule.sequence import Sequence

Clock = Callable[[], float]
T = TypeVar("T")

_WARM_UP_STEPS = 2
_RUNS, _STEPS = 4, 4  # of decode; a run counts by its mean, as an answer's speed does
_NEW_TOKENS = _WARM_UP_STEPS + _RUNS * _STEPS
_SHALLOW = 32  # tokens before the first decoded one
_LEAST_CONTEXT = 8  # tokens; half of them are decoded, the warm-up included
# Speeds of long prompts are predicted from what is measured, and chunks deep in one are slower
# by more than a line through the first few of them would tell.
_DEEP = 1024
# Of a chunk that may double with each.
_LEAST_TURNS, _MOST_TURNS = 4, 8
_BANDS = 4  # parts of a prompt, by depth, whose chunks are one figure
_COPIED_BYTES = 32 * 2**20
_COPIES = 7


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured: chunks as shares of the planned one, prompt in chunks, runs, widths."""

    shares: tuple[int, ...]
    prompt_chunks: int
    runs: int
    widths: tuple[int, ...]
    budget_s: float  # a prompt that would start later than this is left out


QUICK = Effort((1, 2), 2, 3, (1, 2, 4), 60.0)
FULL = Effort((1, 2, 4), 4, 5, (1, 2, 4, 8), 300.0)


@dataclass(frozen=True, slots=True)
class Subject:
    """The loaded model as it serves. `max_width` is 1 while experts come from the disk."""

    model: nn.Module
    make_caches: Callable[[], Caches]
    stream: mx.Stream
    vocab_size: int
    context: int
    chunk: int
    slice_s: float  # the scheduler cuts chunks by it
    max_width: int
    kv_threshold: Callable[[], int]

    @property
    def new_tokens(self) -> int:
        """How many are decoded behind a prompt."""
        return min(_NEW_TOKENS, self.context // 2)

    @property
    def longest_prompt(self) -> int:
        return self.context - self.new_tokens


@dataclass(frozen=True, slots=True)
class CalibrationProgress:
    fraction: float
    detail: str


def measure(
    subject: Subject, effort: Effort, clock: Clock = time.perf_counter
) -> Generator[CalibrationProgress, None, Record]:
    """Returns the record; closing it early frees everything.

    Raises `EngineFault` where the context is too short to be measured.
    """
    if subject.context < _LEAST_CONTEXT:
        raise EngineFault(
            FaultKind.INVALID,
            f"a context of {subject.context} tokens is too short to be measured; load the model "
            f"with --context {_LEAST_CONTEXT} or more",
            param="context",
        )
    deadline = clock() + effort.budget_s
    bandwidth = _memory_bandwidth(clock)
    yield CalibrationProgress(0.02, "memory bandwidth")
    prompts = _Prompts(subject, clock)
    yield from _at(0.03, prompts.probe())
    served = yield from _at(0.04, prompts.served_chunk(prompts.length(effort) // 2))
    prompt = max(prompts.length(effort), effort.prompt_chunks * served)  # by a better rate now
    prompt = max(served, min(prompt, subject.longest_prompt))
    sizes = _chunk_sizes(served, effort)
    for number in range(effort.runs + 1):  # the first run is the warm-up
        for at, size in enumerate(sizes):
            if number > 1 and clock() > deadline:
                break
            share = (number + at / len(sizes)) / (effort.runs + 1)
            yield from _at(0.05 + 0.57 * share, prompts.run(size, prompt))
    batches = _Batches(subject, clock)
    shallow = min(_SHALLOW, subject.longest_prompt)
    widths = [width for width in effort.widths if width <= subject.max_width]
    for at, width in enumerate(widths):
        fraction = 0.62 + 0.2 * at / len(widths)
        caches = yield from _at(fraction, prompts.caches(shallow, width, served))
        yield from _at(fraction, batches.run(width, caches, shallow))
    for at, depth in enumerate(sorted({prompt // 2, prompt} - {shallow})):
        caches = yield from _at(0.82 + 0.08 * at, prompts.caches(depth, 1, served))
        yield from _at(0.86 + 0.08 * at, batches.run(1, caches, depth))
    rows = prompts.rows()
    choices = choose(rows, batches.rows, default_chunk=served, kv_threshold=subject.kv_threshold())
    if choices.prefill_chunk == served:  # what time cuts off is no reason to plan less
        choices = replace(choices, prefill_chunk=subject.chunk)
    return Record(
        prefill=tuple(rows),
        decode=tuple(batches.rows),
        memory_bytes_s=bandwidth,
        warm_up_s=prompts.warm_up_s(),
        choices=choices,
        full=effort is FULL,
    )


def _at(fraction: float, turns: Generator[str, None, T]) -> Generator[CalibrationProgress, None, T]:
    """The same turns, each a progress."""
    while True:
        try:
            detail = next(turns)
        except StopIteration as end:
            result: T = end.value
            return result
        yield CalibrationProgress(fraction, detail)


def _chunk_sizes(served: int, effort: Effort) -> list[int]:
    """The served size first; larger ones would need scratch that nobody set aside."""
    sizes = [served // share for share in effort.shares]
    return [size for size in sizes if size >= min(CHUNK_GRAIN, served)]


def _memory_bandwidth(clock: Clock) -> Spread:
    """Bytes read and written per second by a pass over an array."""
    source = mx.zeros((_COPIED_BYTES // 4,))
    mx.eval(source, source + 1)
    rates = []
    for _ in range(_COPIES):
        started = clock()
        mx.eval(source + 1)
        rates.append(2 * source.nbytes / max(clock() - started, 1e-9))
    mx.clear_cache()
    return Spread.of(rates)


class _Prompts:
    """Runs of one prompt in chunks of several sizes, and what their chunks took."""

    def __init__(self, subject: Subject, clock: Clock) -> None:
        self._subject = subject
        self._clock = clock
        self._times: dict[tuple[int, int], list[float]] = defaultdict(list)  # chunk, depth
        self._counts: dict[tuple[int, int], int] = {}
        self._scratch: dict[tuple[int, int], int] = {}
        self._cost = PassCost(tokens_per_s=1.0)

    def probe(self) -> Generator[str, None, None]:
        """A first idea of what a pass costs."""
        size, took = min(self._largest, CHUNK_GRAIN), []
        for _ in range(3):
            took.append(self._chunk(self._subject.make_caches(), size))
            yield f"prefill, {size} tokens"
        self._cost.observe(size, min(took), usual=size)

    def length(self, effort: Effort) -> int:
        """Tokens of the prompt that is measured: what fits into the time, `_DEEP` at most."""
        prompts = (effort.runs + 1) * len(effort.shares)
        chunk = self._cut()
        in_time = int(chunk / self._cost.seconds(chunk) * effort.budget_s / prompts)
        return max(1, min(_DEEP, in_time, self._subject.longest_prompt))

    def served_chunk(self, depth: int) -> Generator[str, None, int]:
        """What the scheduler would prefill alone in one step behind `depth` tokens: a whole chunk,
        or a slice of time by what it learns as it goes. Larger ones are tried as long as they pay.
        """
        held = self._subject.context  # by the caches of the turn before; the first has none
        for turn in range(_MOST_TURNS):
            if held + self._cut() > self._subject.context:
                [caches] = yield from self.caches(depth, 1, self._cut())
                held = depth
            size = self._cut()
            held += size
            self._cost.observe(size, self._chunk(caches, size), usual=size)
            yield f"how large a chunk is: {size} tokens behind {depth}"
            if turn + 1 >= _LEAST_TURNS and self._cut() <= size:
                break
        return self._cut()

    def run(self, size: int, prompt: int) -> Generator[str, None, None]:
        """One figure per band of the prompt: chunks in it take the mean."""
        caches = self._subject.make_caches()
        num_chunks = prompt // size
        bands = min(_BANDS, num_chunks)
        for band in range(bands):
            first, end = (num_chunks * at // bands for at in (band, band + 1))
            key = size, size * (first + end - 1) // 2
            took = []
            for at in range(first, end):
                mx.reset_peak_memory()
                took.append(self._chunk(caches, size))
                scratch = max(0, mx.get_peak_memory() - mx.get_active_memory())
                self._scratch[key] = max(scratch, self._scratch.get(key, 0))
                yield f"prefill, {size} tokens behind {at * size}"
            self._times[key].append(fmean(took))
            self._counts[key] = len(took)

    def caches(self, depth: int, count: int, size: int) -> Generator[str, None, list[Caches]]:
        """Of `count` prompts of `depth` tokens, evaluated in chunks of `size`."""
        made = [self._subject.make_caches() for _ in range(count)]
        for caches in made:
            for done in range(0, depth, size):
                self._chunk(caches, min(size, depth - done))
                yield f"a prompt of {depth} tokens"
        return made

    def rows(self) -> list[Prefilled]:
        return [
            Prefilled(chunk, depth, Spread.of(times[1:] or times), self._scratch[chunk, depth])
            for (chunk, depth), times in self._times.items()
        ]

    def warm_up_s(self) -> float:
        """What the first run took longer than the later ones took on average."""
        longer = (
            self._counts[key] * (times[0] - Spread.of(times[1:]).median)
            for key, times in self._times.items()
            if len(times) > 1
        )
        return max(0.0, sum(longer))

    @property
    def _largest(self) -> int:
        return max(1, min(self._subject.chunk, self._subject.context // 2))

    def _cut(self) -> int:
        slice_s = lone_slice_s(self._subject.slice_s, self._cost)
        return min(self._cost.chunk(slice_s, self._largest), self._largest)

    def _chunk(self, caches: Caches, size: int) -> float:
        subject = self._subject
        ids = mx.random.randint(0, subject.vocab_size, (1, size))
        mx.eval(ids)
        started = self._clock()
        with mx.stream(subject.stream):
            subject.model(ids, cache=caches)
            mx.eval([cache.state for cache in caches])
        return self._clock() - started


class _Batches:
    """Decode steps of batches of their own."""

    def __init__(self, subject: Subject, clock: Clock) -> None:
        self._subject = subject
        self._clock = clock
        self.rows: list[Decoded] = []

    def run(self, width: int, caches: list[Caches], depth: int) -> Generator[str, None, None]:
        batch = DecodeBatch(self._subject.model, self._subject.stream)
        for index, held in enumerate(caches):
            batch.add([self._row(index)], [held])
        times = []
        new_tokens = self._subject.new_tokens
        for _ in range(new_tokens):
            started = self._clock()
            batch.step()
            times.append(self._clock() - started)
            yield f"decode, {width} x {depth} tokens"
        batch.clear()
        runs = [times[at : at + _STEPS] for at in range(_WARM_UP_STEPS, new_tokens, _STEPS)]
        self.rows.append(Decoded(width, depth, Spread.of([fmean(run) for run in runs])))

    def _row(self, index: int) -> Row:
        sequence = Sequence("calibration", index, [0], self._subject.new_tokens, 0.0)
        greedy = RowSampling(SamplingSettings(temperature=0.0), [0], self._subject.vocab_size)
        return Row(sequence, greedy)
