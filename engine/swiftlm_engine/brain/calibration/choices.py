"""Settings that the figures speak for. The default stays wherever they do not speak clearly."""

from __future__ import annotations

from collections.abc import Sequence

from swiftlm_engine.brain.calibration.record import Choices, Decoded, Prefilled, batched_depth

# A wider batch lets each of its sequences wait longer; it must give this much more in all.
_WIDER_GAIN = 1.1
# Freed buffers are kept for the next chunk: those of one chunk, within what a plan would keep.
_MIN_POOL = 128 * 2**20


def choose(
    prefill: Sequence[Prefilled],
    decode: Sequence[Decoded],
    *,
    default_chunk: int,
    kv_threshold: int = 0,
) -> Choices:
    chunk = _chunk(prefill, default_chunk)
    scratch = max((row.scratch_bytes for row in prefill if row.chunk == chunk), default=0)
    return Choices(chunk, _width(decode), max(_MIN_POOL, scratch), kv_threshold)


def _chunk(rows: Sequence[Prefilled], default: int) -> int:
    """The default, unless another chunk's slowest run of the same prompt beats its fastest."""
    sizes = sorted({row.chunk for row in rows})
    if default not in sizes:
        return default
    chosen, best = default, _prompt_s(rows, default)[0]
    for size in sizes:
        fastest, slowest = _prompt_s(rows, size)
        if size != default and slowest < best:
            chosen, best = size, fastest
    return chosen


def _prompt_s(rows: Sequence[Prefilled], chunk: int) -> tuple[float, float]:
    """Seconds per token over the whole measured prompt: fastest and slowest."""
    mine = [row for row in rows if row.chunk == chunk]
    tokens = chunk * len(mine)
    return sum(r.chunk_s.low for r in mine) / tokens, sum(r.chunk_s.high for r in mine) / tokens


def _width(rows: Sequence[Decoded]) -> int:
    """The widest batch whose last widening still paid; no single seat where batches were measured,
    since in one a short question waits for somebody's whole answer."""
    depth = batched_depth(rows)
    speeds = {row.width: row.tokens_s for row in rows if row.depth == depth and row.width > 1}
    chosen = min(speeds, default=1)
    for width in sorted(speeds):
        if speeds[width] >= _WIDER_GAIN * speeds[chosen]:
            chosen = width
    return chosen
