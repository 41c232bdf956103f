"""How verbs speak: tables on a terminal, plain aligned text in a pipe, JSON on request.

Everything heavy (rich, the messages) is imported by the function that needs it.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # JSON values

from swiftlm_proto.visible import visible, visible_json, visible_lines

_CLEAR = frozenset({"notes", "licence", "detail", "path", "verdict"})  # cells that need no name
_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    # Columns read from the right edge: sizes, counts.
    right: frozenset[str] = frozenset()


def say(text: str = "") -> None:
    write(text + "\n")


def say_wrapped(text: str, indent: int = 2) -> None:
    """On a terminal no line is cut inside a word; what follows the first line is indented."""
    say(wrapped(text, terminal_width(), indent) if on_terminal() else text)


def wrapped(text: str, width: int, indent: int = 2) -> str:
    """Lines of at most `width`, unless a word is longer. The lines' own indentation is kept."""
    return "\n".join(_wrapped_line(line, width, indent) for line in text.split("\n"))


def _wrapped_line(line: str, width: int, indent: int) -> str:
    if len(line) <= width:
        return line
    own = len(line) - len(line.lstrip())
    # Where little room is left beside it, a deep indentation would make a column of words.
    hanging = " " * (own + indent if own + indent <= width // 2 else 4)
    return textwrap.fill(
        line, max(width, 20), subsequent_indent=hanging, replace_whitespace=False,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


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
        _show_fitted(table, indent)
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


def _show_fitted(table: Table, indent: int) -> None:
    """Columns that the terminal has no room for stand below their row, wrapped between words."""
    width = max(terminal_width() - indent, 20)
    for line in fitted(table, width):
        say(" " * indent + line)


def terminal_width() -> int:
    return shutil.get_terminal_size().columns


def fitted(table: Table, width: int) -> list[str]:
    """The table in lines of at most `width`, as long as no first cell or word is longer."""
    count = _fitting_columns(table, width)
    columns, rest = table.columns[:count], table.columns[count:]
    rows = tuple(row[:count] for row in table.rows)
    head, *lines = aligned(Table(columns, rows, table.right))
    found = [head]
    for line, row in zip(lines, table.rows, strict=True):
        found.append(line)
        below = [
            cell if name in _CLEAR else f"{name} {cell}"
            for name, cell in zip(rest, row[count:], strict=True)
            if cell
        ]
        found += textwrap.wrap(
            ", ".join(below), width, initial_indent="    ", subsequent_indent="    ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return found


def _fitting_columns(table: Table, width: int) -> int:
    lines = (table.columns, *table.rows)
    used = -2
    for index in range(len(table.columns)):
        used += 2 + max(len(line[index]) for line in lines)
        if used > width:
            return max(index, 1)
    return len(table.columns)


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
