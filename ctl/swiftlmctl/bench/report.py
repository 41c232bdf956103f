"""A benchmark's result: table and bars in the terminal, a Markdown page, JSON, an SVG plot."""

from __future__ import annotations

import json
import platform
import re
import time
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from swiftlmctl import output
from swiftlmctl.bench.figures import Figure

_BAR_PX, _ROW_PX, _LABEL_PX = 420, 22, 260


@dataclass(slots=True)
class Report:
    """`bars` are what the picture shows: label -> figure, of one unit. `failed` are checks."""

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    bars: dict[str, Figure] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        self.rows.append(tuple(str(cell) for cell in cells))

    def check(self, right: bool, promise: str) -> str:
        """Books a promise; the word for the table."""
        if not right:
            self.failed.append(promise)
        return "yes" if right else "NO"

    def show(self) -> None:
        output.say(f"\n{self.name}\n")
        output.show_table(output.Table(self.columns, tuple(self.rows)))
        longest = max((figure.median for figure in self.bars.values()), default=0.0)
        width = max(map(len, self.bars), default=0)
        for label, figure in self.bars.items():
            share = figure.median / longest if longest else 0.0
            output.say(f"{label.ljust(width)}  {output.bar(share, 30)}  {figure}")
        for note in (*self.notes, *(f"NOT KEPT: {promise}" for promise in self.failed)):
            output.say(note)

    def markdown(self) -> str:
        lines = [f"## {self.name}", "", _line(self.columns), _line(("---",) * len(self.columns))]
        lines += [_line(row) for row in self.rows]
        if self.bars:
            lines += ["", f"![{self.name}]({_slug(self.name)}.svg)"]
        lines += [f"\n{note}" for note in self.notes]
        lines += [f"\n**Not kept: {promise}**" for promise in self.failed]
        return "\n".join([*lines, ""])

    def svg(self) -> str:
        """Horizontal bars; the thin line is the spread."""
        longest = max((max(figure.values) for figure in self.bars.values()), default=1.0) or 1.0
        height = _ROW_PX * len(self.bars) + 10
        width = _LABEL_PX + _BAR_PX + 160
        rows = [
            _bar_row(i, label, figure, _BAR_PX / longest)
            for i, (label, figure) in enumerate(self.bars.items())
        ]
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        style = 'font-family="system-ui, sans-serif" font-size="12"'
        return "\n".join([f"{head} {style}>", *rows, "</svg>", ""])


def save(reports: list[Report], folder: Path) -> Path:
    """Writes `profiling_results_<host>.md` with its plots and JSON; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    host = re.sub(r"[^A-Za-z0-9.-]", "_", platform.node() or "host")
    machine = f"{platform.platform()}, {time.strftime('%Y-%m-%d %H:%M')}"
    page = folder / f"profiling_results_{host}.md"
    pages = [report.markdown() for report in reports]
    page.write_text("\n".join([f"# swiftlm bench on {host}", "", machine, "", *pages]), "utf-8")
    for report in reports:
        if report.bars:
            (folder / f"{_slug(report.name)}.svg").write_text(report.svg(), "utf-8")
    content = {"machine": machine, "reports": output.plain(reports)}
    page.with_suffix(".json").write_text(json.dumps(content, indent=1), "utf-8")
    return page


def _bar_row(number: int, label: str, figure: Figure, scale: float) -> str:
    top = number * _ROW_PX + 5
    length = figure.median * scale
    low, high = min(figure.values) * scale, max(figure.values) * scale
    middle = top + (_ROW_PX - 6) / 2
    return (
        f'<text x="0" y="{top + 12}">{escape(label)}</text>'
        f'<rect x="{_LABEL_PX}" y="{top}" width="{length:.1f}" height="{_ROW_PX - 6}" '
        f'fill="#4a7bd0"/>'
        f'<line x1="{_LABEL_PX + low:.1f}" x2="{_LABEL_PX + high:.1f}" y1="{middle}" '
        f'y2="{middle}" stroke="#1b1b1b"/>'
        f'<text x="{_LABEL_PX + high + 6:.1f}" y="{top + 12}">{escape(str(figure))}</text>'
    )


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"
