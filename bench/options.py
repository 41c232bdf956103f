"""What `python -m bench` was asked to measure; the benchmarks read it when they run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.models import smollm2_dense


@dataclass(slots=True)
class Options:
    model: Path | None = None
    num_tokens: int | None = None
    rounds: int | None = None
    widths: tuple[int, ...] = ()  # clients at once, where that is what varies

    @property
    def folder(self) -> Path:
        """The model's folder; SmolLM2-135M, dense, if none was named."""
        return self.model or smollm2_dense()


OPTIONS = Options()
