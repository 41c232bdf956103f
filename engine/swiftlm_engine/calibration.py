"""Measures a loaded model: prompts in chunks, steps of batches, memory. Runs on the MLX thread.

`measure` is a generator whose every turn takes about as long as one chunk or one step, so that
whoever drives it can stop between two turns when a request arrives. Its caches are its own: nothing
of it is seen by the scheduler or kept for a prefix.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace

import mlx.core as mx
import mlx.nn as nn

from swiftlm_engine.brain.calibration import Decoded, Prefilled, Record, Spread, choose
from swiftlm_engine.brain.scheduler import CHUNK_GRAIN
from swiftlm_engine.brain.sequence import Sequence
from swiftlm_engine.decode_batch import DecodeBatch, Row
from swiftlm_engine.row_caches import Caches
from swiftlm_engine.sampling.row import RowSampling
from swiftlm_engine.sampling.settings import SamplingSettings

Clock = Callable[[], float]

_STEPS = 8  # decode steps that count, after two that do not
_WARM_UP_STEPS = 2
_SHALLOW = 32  # tokens before the first decoded one
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
    slice_s: float  # the scheduler cuts chunks that would take longer
    max_width: int
    kv_threshold: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Progress:
    fraction: float
    detail: str


def measure(
    subject: Subject, effort: Effort, clock: Clock = time.perf_counter
) -> Generator[Progress, None, Record]:
    """Returns the record; closing it early frees everything."""
    deadline = clock() + effort.budget_s
    bandwidth = _memory_bandwidth(clock)
    yield Progress(0.02, "memory bandwidth")
    prompts = _Prompts(subject, clock)
    yield Progress(0.04, "how large a chunk is")
    served = prompts.served_chunk()
    sizes = _chunk_sizes(served, effort)
    prompt = min(subject.context - _STEPS - _WARM_UP_STEPS, effort.prompt_chunks * served)
    for number in range(effort.runs + 1):  # the first run is the warm-up
        for at, size in enumerate(sizes):
            if number > 1 and clock() > deadline:
                break
            share = (number + at / len(sizes)) / (effort.runs + 1)
            for detail in prompts.run(size, prompt):
                yield Progress(0.05 + 0.57 * share, detail)
    batches = _Batches(subject, clock)
    widths = [width for width in effort.widths if width <= subject.max_width]
    for at, width in enumerate(widths):
        for detail in batches.run(width, prompts.caches(_SHALLOW, width), _SHALLOW):
            yield Progress(0.62 + 0.2 * at / len(widths), detail)
    for at, depth in enumerate(sorted({prompt // 2, prompt} - {_SHALLOW})):
        yield Progress(0.82 + 0.08 * at, f"a prompt of {depth} tokens")
        for detail in batches.run(1, prompts.caches(depth, 1), depth):
            yield Progress(0.86 + 0.08 * at, detail)
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
    """Runs of one prompt in chunks of several sizes, and what each chunk took."""

    def __init__(self, subject: Subject, clock: Clock) -> None:
        self._subject = subject
        self._clock = clock
        self._times: dict[tuple[int, int], list[float]] = defaultdict(list)  # chunk, depth
        self._scratch: dict[tuple[int, int], int] = {}

    def served_chunk(self) -> int:
        """What the scheduler would prefill in one step: the planned chunk, or a slice of time."""
        largest = max(1, min(self._subject.chunk, self._subject.context // 2))
        probe = min(largest, CHUNK_GRAIN)
        took = [self._chunk(self._subject.make_caches(), probe) for _ in range(3)]
        by_time = int(probe / min(took) * self._subject.slice_s) // CHUNK_GRAIN * CHUNK_GRAIN
        return min(largest, max(CHUNK_GRAIN, by_time))

    def run(self, size: int, prompt: int) -> Iterator[str]:
        caches = self._subject.make_caches()
        for depth in range(0, prompt - size + 1, size):
            mx.reset_peak_memory()
            took = self._chunk(caches, size)
            key = size, depth
            scratch = max(0, mx.get_peak_memory() - mx.get_active_memory())
            self._times[key].append(took)
            self._scratch[key] = max(scratch, self._scratch.get(key, 0))
            yield f"prefill, {size} tokens behind {depth}"

    def caches(self, depth: int, count: int) -> list[Caches]:
        """Of `count` prompts of `depth` tokens."""
        made = [self._subject.make_caches() for _ in range(count)]
        for caches in made:
            done = 0
            while done < depth:
                size = min(self._subject.chunk, depth - done)
                self._chunk(caches, size)
                done += size
        return made

    def rows(self) -> list[Prefilled]:
        return [
            Prefilled(chunk, depth, Spread.of(times[1:] or times), self._scratch[chunk, depth])
            for (chunk, depth), times in self._times.items()
        ]

    def warm_up_s(self) -> float:
        """What the first run took longer than the later ones took on average."""
        runs = [times for times in self._times.values() if len(times) > 1]
        return max(0.0, sum(times[0] - Spread.of(times[1:]).median for times in runs))

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

    def run(self, width: int, caches: list[Caches], depth: int) -> Iterator[str]:
        batch = DecodeBatch(self._subject.model, self._subject.stream)
        for index, held in enumerate(caches):
            batch.add([self._row(index)], [held])
        times = []
        for _ in range(_WARM_UP_STEPS + _STEPS):
            started = self._clock()
            batch.step()
            times.append(self._clock() - started)
            yield f"decode, {width} x {depth} tokens"
        batch.clear()
        self.rows.append(Decoded(width, depth, Spread.of(times[_WARM_UP_STEPS:])))

    def _row(self, index: int) -> Row:
        sequence = Sequence("calibration", index, [0], _STEPS, 0.0)
        greedy = RowSampling(SamplingSettings(temperature=0.0), [0], self._subject.vocab_size)
        return Row(sequence, greedy)
