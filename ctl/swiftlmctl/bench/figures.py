"""Several measurements of one thing: median and spread."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    values: tuple[float, ...]
    unit: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        """`12.3 tok/s (11.9-12.6)`; one value stands alone."""
        text = f"{_short(self.median)} {self.unit}".rstrip()
        if len(self.values) < 2:
            return text
        return f"{text} ({_short(min(self.values))}-{_short(max(self.values))})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def ratio(ours: Figure, other: Figure) -> str:
    return f"{ours.median / other.median:.2f} x" if other.median else "-"
