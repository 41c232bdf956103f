"""Prefill as a played machine reports it."""

from __future__ import annotations

from collections.abc import Sequence

from swiftlm_engine.schedule.step import Chunk, PrefillPass


def alone(chunks: Sequence[Chunk], seconds: Sequence[float]) -> tuple[PrefillPass, ...]:
    """A pass for each chunk."""
    return tuple(PrefillPass((c,), took) for c, took in zip(chunks, seconds, strict=True))
