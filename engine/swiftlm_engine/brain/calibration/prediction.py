"""Speeds of prompts and batches that were not measured, read off lines through those that were."""

from __future__ import annotations

from collections.abc import Sequence

from swiftlm_engine.brain.calibration.record import Decoded, Prefilled, Record, batched_depth


def prefill_s(record: Record, prompt: int, chunk: int) -> float:
    """Seconds of a prompt evaluated in chunks; the last one may be shorter."""
    total, depth = 0.0, 0
    while depth < prompt:
        count = min(chunk, prompt - depth)
        total += count * _token_s(record.prefill, count, depth)
        depth += count
    return total


def decode_s(record: Record, depth: int, width: int = 1) -> float:
    """Seconds of one step of `width` sequences that hold `depth` tokens each."""
    alone = [(row.depth, row.step_s.median) for row in record.decode if row.width == 1]
    base, slope = _line(alone)
    shallow = batched_depth(record.decode)
    # Rows share the weights that are read, and each reads its own KV.
    kv = max(0.0, slope) * (depth - shallow)
    step = base + slope * shallow if width == 1 else _step_s(record.decode, shallow, width)
    return max(step + width * kv, min(row.step_s.low for row in record.decode) / 2)


def decode_speed(record: Record, depth: int, width: int = 1) -> float:
    """Tokens per second of all sequences together."""
    return width / decode_s(record, depth, width)


def _token_s(rows: Sequence[Prefilled], count: int, depth: int) -> float:
    """Seconds per token of a chunk of `count`, by the chunk size nearest to it."""
    size = min({row.chunk for row in rows}, key=lambda chunk: (abs(chunk - count), chunk))
    mine = [row for row in rows if row.chunk == size]
    base, slope = _line([(row.depth, row.chunk_s.median / row.chunk) for row in mine])
    # A prompt only gets slower with depth; a falling line is noise of a busy machine.
    if slope < 0:
        return sum(row.chunk_s.median for row in mine) / sum(row.chunk for row in mine)
    return max(base + slope * depth, min(row.chunk_s.low for row in mine) / size / 2)


def _step_s(rows: Sequence[Decoded], depth: int, width: int) -> float:
    points = sorted((row.width, row.step_s.median) for row in rows if row.depth == depth)
    below = [point for point in points if point[0] <= width]
    above = [point for point in points if point[0] >= width]
    if not below or not above:
        nearest = (below[-2:] if below else above[:2]) or points
        base, slope = _line(nearest)
        return base + max(0.0, slope) * width
    (w0, s0), (w1, s1) = below[-1], above[0]
    return s0 if w0 == w1 else s0 + (s1 - s0) * (width - w0) / (w1 - w0)


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Intercept and slope of the least squares; a single point is a flat line."""
    n = len(points)
    mean_x = sum(x for x, _ in points) / n
    mean_y = sum(y for _, y in points) / n
    square = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / square if square else 0.0
    return mean_y - slope * mean_x, slope
