"""Which decoder of the scalar form this GPU runs faster: measured once per process, some 50 ms.

A code becomes its level by a shuffle over the lanes or by a look into threadgroup memory; which one
costs less differs from chip to chip, and no table says it.
"""

import time
from collections.abc import Callable
from typing import Protocol

import mlx.core as mx

from swiftlm_engine.turboquant.codec import Pages, codec
from swiftlm_engine.turboquant.formats import K4V3, PAGE_TOKENS
from swiftlm_engine.turboquant.sequence import EXACT_CAPACITY, SequenceKV

HEADS, GROUP, DIM, PAGES = 8, 4, 128, 128
CHAIN = 8  # calls per measurement, each asking with the answer of the one before
REPEATS = 3


class Tunable(Protocol):
    table_in_memory: bool

    def attend(self, kv: SequenceKV, queries: mx.array, scale: float) -> mx.array: ...


def choose_decoder(backend: Tunable, clock: Callable[[], float] = time.perf_counter) -> None:
    """Sets `table_in_memory` to what was faster; a tie leaves the table with the lanes."""
    kv = _storage()
    seconds = {}
    for in_memory in (False, True):
        backend.table_in_memory = in_memory
        _chain(backend, kv)  # compiles
        seconds[in_memory] = min(_timed(backend, kv, clock) for _ in range(REPEATS))
    backend.table_in_memory = seconds[True] < seconds[False]


def _timed(backend: Tunable, kv: SequenceKV, clock: Callable[[], float]) -> float:
    start = clock()
    _chain(backend, kv)
    return clock() - start


def _chain(backend: Tunable, kv: SequenceKV) -> None:
    query = mx.zeros((HEADS * GROUP, 1, DIM), mx.float16)
    for _ in range(CHAIN):
        query = backend.attend(kv, query, DIM**-0.5)
    mx.eval(query)


def _storage() -> SequenceKV:
    """Random codes: equal ones would all look into the same place of the table."""
    kv = SequenceKV(codec(K4V3, DIM), num_exact=PAGE_TOKENS, num_pages=PAGES)
    kv.zone = mx.zeros((2, HEADS, EXACT_CAPACITY, DIM), mx.float16)
    kv.pages = Pages(
        _words(DIM // 8, PAGE_TOKENS),
        mx.ones((HEADS, PAGES, 1, PAGE_TOKENS), mx.float16),
        _words(8, DIM * 3 // 4),
        mx.ones((HEADS, PAGES, PAGE_TOKENS), mx.float16),
    )
    kv.means = mx.zeros((HEADS, kv.num_segments, DIM), mx.float16)
    kv.equaliser = mx.ones((HEADS, DIM), mx.float16)
    mx.eval(kv.arrays())
    return kv


def _words(*shape: int) -> mx.array:
    low, high = mx.random.randint(0, 1 << 16, (2, HEADS, PAGES, *shape), key=mx.random.key(0))
    return low.astype(mx.uint32) | high.astype(mx.uint32) << 16
