"""Whether decoding over compressed KV is faster than over exact KV: measured here, on one layer.

Steps are chained (each asks with what the last one answered), so that a launch cannot hide behind
another, and the median of a few runs counts. Needs memory for one layer's KV of one sequence.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from swiftlm_engine.turboquant.backend import Backend
from swiftlm_engine.turboquant.cache import TurboKVCache
from swiftlm_engine.turboquant.formats import KVFormat

_RUNS = 5
_STEPS = 8


@dataclass(frozen=True, slots=True)
class AttentionShape:
    query_heads: int
    kv_heads: int
    head_dim: int


def decode_ratio(
    shape: AttentionShape,
    format: KVFormat,
    tokens: int,
    backend: Backend,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Time of a step over exact KV of `tokens` tokens, over that of a compressed one. Evaluated."""
    keys, values = (
        mx.random.normal((1, shape.kv_heads, tokens, shape.head_dim)).astype(mx.float16)
        for _ in range(2)
    )
    query = mx.random.normal((1, shape.query_heads, 1, shape.head_dim)).astype(mx.float16)
    scale = shape.head_dim**-0.5
    cache = TurboKVCache(format, shape.head_dim, backend)
    cache.update_and_fetch(keys, values)
    mx.eval(cache.attend(query, scale))

    def exact(q: mx.array) -> mx.array:
        return mx.fast.scaled_dot_product_attention(q, keys, values, scale=scale)

    def compressed(q: mx.array) -> mx.array:
        return backend.attend(cache.kv, q[0], scale)[None]

    mx.eval(keys, values, query, cache.state)
    return _median_time(exact, query, clock) / _median_time(compressed, query, clock)


def _median_time(
    attend: Callable[[mx.array], mx.array], query: mx.array, clock: Callable[[], float]
) -> float:
    mx.eval(attend(query))  # compiles
    times = []
    for _ in range(_RUNS):
        started, q = clock(), query
        for _ in range(_STEPS):
            q = attend(q)
        mx.eval(q)
        times.append(clock() - started)
    return statistics.median(times)
