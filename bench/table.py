"""Figures with their spread, printed as one Markdown table and kept as JSON."""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Figure:
    """Several measurements of one thing."""

    values: tuple[float, ...]
    unit: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        low, high = min(self.values), max(self.values)
        return f"{self.median:.3g} {self.unit} ({low:.3g}-{high:.3g})".replace("  ", " ")


@dataclass
class Report:
    name: str
    columns: Sequence[str]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    figures: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    pictures: dict[str, str] = field(default_factory=dict)  # name -> SVG

    def add(self, *cells: object, **figures: Figure) -> None:
        """A finished row; it is shown on stderr at once, since the next one may take minutes."""
        self.rows.append(tuple(str(cell) for cell in cells))
        print(_line(self.rows[-1]), file=sys.stderr, flush=True)
        self.figures |= {key: list(figure.values) for key, figure in figures.items()}

    def __str__(self) -> str:
        lines = [f"## {self.name}", "", _line(self.columns), _line(["---"] * len(self.columns))]
        lines += [_line(row) for row in self.rows]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes), ""])

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        machine = {
            "machine": platform.platform(),
            "python": platform.python_version(),
            "at": time.strftime("%Y-%m-%d %H:%M"),
        }
        path = folder / f"{self.name.replace(' ', '_')}.json"
        content = asdict(self)
        for name, svg in content.pop("pictures").items():
            (folder / f"{name}.svg").write_text(svg)
        path.write_text(json.dumps(content | machine, indent=1))


def ratio(ours: Figure, peer: Figure) -> str:
    return f"{ours.median / peer.median:.2f} x"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
