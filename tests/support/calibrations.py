"""Calibration records for tests, made by arithmetic that a test can redo."""

from __future__ import annotations

from swiftlm_engine.brain.calibration import Choices, Decoded, Prefilled, Record, Spread


def spread(value: float, noise: float = 0.05) -> Spread:
    return Spread(value, value * (1 - noise), value * (1 + noise), 3)


def prefilled(chunk: int, depth: int, tokens_s: float, *, noise: float = 0.05) -> Prefilled:
    return Prefilled(chunk, depth, spread(chunk / tokens_s, noise), 1_000_000 * chunk)


def decoded(width: int, depth: int, step_s: float, *, noise: float = 0.05) -> Decoded:
    return Decoded(width, depth, spread(step_s, noise))


def record(*, prefill: tuple[Prefilled, ...] = (), decode: tuple[Decoded, ...] = ()) -> Record:
    return Record(
        prefill=prefill or (prefilled(256, 0, 1000.0), prefilled(256, 256, 1000.0)),
        decode=decode or (decoded(1, 32, 0.1), decoded(4, 32, 0.2), decoded(1, 1032, 0.2)),
        memory_bytes_s=spread(1e10),
        warm_up_s=0.5,
        choices=Choices(256, 4, 2**27),
    )
