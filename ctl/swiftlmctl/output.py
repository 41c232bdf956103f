"""How verbs speak: tables on a terminal, plain aligned text in a pipe, JSON on request.

Everything heavy (rich, the messages) is imported by the function that needs it.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # JSON values

from swiftlm_proto.visible import visible, visible_json, visible_lines

_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    # Columns read from the right edge: sizes, counts.
    right: frozenset[str] = frozenset()


def say(text: str = "") -> None:
    write(text + "\n")


def say_in(colour: int, text: str) -> None:
    _write(f"\x1b[{colour}m{visible_lines(text)}\x1b[0m\n")


def write(text: str) -> None:
    """At once, also in a pipe. What would move a terminal's cursor is shown escaped."""
    _write(visible_lines(text))


def _write(text: str) -> None:
    """A reader that has had enough (`| head`) ends the program."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered would raise once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None


def warn(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"warning: {visible_lines(text)}\n")


def on_terminal() -> bool:
    return sys.stdout.isatty()


def show_json(value: object) -> None:
    text = json.dumps(plain(value), indent=2, ensure_ascii=False)
    say("\n".join(map(visible_json, text.split("\n"))))


def show_json_line(value: object) -> None:
    say(visible_json(json.dumps(plain(value), ensure_ascii=False)))


def show_table(table: Table, indent: int = 0) -> None:
    if not table.rows:
        return
    if on_terminal():
        _show_rich(table, indent)
    else:
        for line in aligned(table):
            say(" " * indent + line)


def aligned(table: Table) -> list[str]:
    """The table as text: two spaces between columns, headings in capitals."""
    head = tuple(column.upper() for column in table.columns)
    lines = [head, *(tuple(map(visible, row)) for row in table.rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return [_aligned_line(table, line, widths) for line in lines]


def _aligned_line(table: Table, line: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        cell.rjust(width) if column in table.right else cell.ljust(width)
        for cell, column, width in zip(line, table.columns, widths, strict=True)
    ]
    return "  ".join(cells).rstrip()


def _show_rich(table: Table, indent: int) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table as RichTable

    rich = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        rich.add_column(column, justify="right" if column in table.right else "left")
    for row in table.rows:
        rich.add_row(*(_escaped(cell) for cell in row))
    Console().print(Padding(rich, (0, 0, 0, indent), expand=False))


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(visible(text))


def plain(value: object) -> Any:
    """`value` as JSON's types: messages and dataclasses become objects, enums lower-case names.

    Text fields that carry JSON (plans, counters) are unpacked, so that `jq` reaches into them.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not field.name.startswith("_")
        }
    if isinstance(value, enum.Enum):
        return (value.name or str(value.value)).lower()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, str):
        return _unpacked(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return value


def _unpacked(text: str) -> Any:
    if not text.startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def size_text(num_bytes: int) -> str:
    """Decimal units with three digits at most: 21.4 GB."""
    value = float(num_bytes)
    for unit in _UNITS:
        if abs(value) < 999.5 or unit == _UNITS[-1]:
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def duration_text(seconds: float) -> str:
    """The two largest units: 3d 4h, 5m 12s, 0.4s."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    rest = int(seconds)
    parts: list[str] = []
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        if rest >= length or (unit == "s" and not parts):
            parts.append(f"{rest // length}{unit}")
            rest %= length
        elif parts:
            break
    return " ".join(parts[:2])


def bar(fraction: float, width: int = 24) -> str:
    filled = round(min(max(fraction, 0.0), 1.0) * width)
    return "█" * filled + "░" * (width - filled)
