"""A benchmark's result: table and bars in the terminal, a Markdown page, JSON, an SVG plot."""

from __future__ import annotations

import json
import platform
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any  # JSON values

from swiftlmctl import output
from swiftlmctl.bench.bar_chart import bars
from swiftlmctl.bench.figures import Figure


@dataclass(slots=True)
class Report:
    """`bars` are what the picture shows: label -> figure, of one unit. `failed` are checks.

    What was measured before something ended it early is kept with the reason.
    """

    name: str
    columns: tuple[str, ...]
    shows: str = ""  # what the bars are of
    rows: list[tuple[str, ...]] = field(default_factory=list)
    bars: dict[str, Figure] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    ended_early: str = ""
    taken: str = ""  # where and when

    @property
    def title(self) -> str:
        return f"{self.name}: {self.shows}" if self.shows else self.name

    def add(self, *cells: object) -> None:
        """The rest of a short row is empty."""
        row = tuple(str(cell) for cell in cells)
        self.rows.append(row + ("",) * (len(self.columns) - len(row)))

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
        if self.ended_early:
            output.say(f"ENDED EARLY: {self.ended_early}")

    def markdown(self) -> str:
        lines = [
            f"## {self.name}",
            "",
            self.taken,
            "",
            _line(self.columns),
            _line(("---",) * len(self.columns)),
        ]
        lines += [_line(row) for row in self.rows]
        if self.bars:
            lines += ["", f"![{self.name}]({_slug(self.name)}.svg)"]
        lines += [f"\n{note}" for note in self.notes]
        lines += [f"\n**Not kept: {promise}**" for promise in self.failed]
        lines += [f"\n**Ended early: {self.ended_early}**"] if self.ended_early else []
        return "\n".join([*lines, ""])


def save(report: Report, folder: Path) -> Path:
    """Writes `profiling_results_<host>.md` with its plots and JSON; returns the page's path.

    Reports of other names that the page has already stay on it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    host = re.sub(r"[^A-Za-z0-9.-]", "_", platform.node() or "host")
    page = folder / f"profiling_results_{host}.md"
    report.taken = f"{platform.platform()}, {time.strftime('%Y-%m-%d %H:%M')}"
    others = [kept for kept in _kept(page.with_suffix(".json")) if kept.name != report.name]
    reports = [*others, report]
    pages = [each.markdown() for each in reports]
    page.write_text("\n".join([f"# swiftlm bench on {host}", "", *pages]), "utf-8")
    if report.bars:
        picture = bars(report.title, report.bars)
        (folder / f"{_slug(report.name)}.svg").write_text(picture, "utf-8")
    content = {"reports": output.plain(reports)}
    page.with_suffix(".json").write_text(json.dumps(content, indent=1), "utf-8")
    return page


def _kept(file: Path) -> list[Report]:
    """What an earlier run left there; nothing where that is of another form."""
    try:
        return [_report(fields) for fields in json.loads(file.read_text("utf-8"))["reports"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _report(fields: dict[str, Any]) -> Report:
    figures = {
        part: {label: Figure(tuple(it["values"]), it["unit"]) for label, it in fields[part].items()}
        for part in ("bars", "figures")
    }
    return Report(**{**fields, **figures})


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"
