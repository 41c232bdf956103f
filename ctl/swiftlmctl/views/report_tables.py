"""Prints a JSON report (plan, memory ledger, calibration) as tables, whatever it holds.

The daemon owns the arithmetic and the names; this only lays them out: numbers under a name that
ends in a unit with that unit, two numbers in a list as a range, lists of objects as tables, objects
as indented lines.
"""

from __future__ import annotations

import itertools
import json
from typing import Any  # JSON values

from swiftlmctl import output

# How names in JSON end, and what a reader sees in their place.
_UNITS = (
    ("_bytes_per_s", "/s"),
    ("_bytes", ""),
    ("tokens_s", "tok/s"),
    ("_gb_s", " GB/s"),
    ("_s", " s"),
)


def show(text: str) -> None:
    try:
        report = json.loads(text)
    except ValueError:
        output.say(text)
        return
    _show(report, depth=0)


def _show(value: Any, depth: int) -> None:
    if isinstance(value, dict):
        _show_object(value, depth)
    elif isinstance(value, list):
        _show_list("", value, depth)
    else:
        output.say("  " * depth + cell("", value))


def _show_object(value: dict[str, Any], depth: int) -> None:
    simple = {name: item for name, item in value.items() if _is_simple(item)}
    width = max((len(title(name)) for name in simple), default=0)
    for name, item in simple.items():
        if item not in (None, ""):
            named = f"{'  ' * depth}{title(name).ljust(width)}  {cell(name, item)}"
            output.say_wrapped(named, indent=width + 2)
    for name, item in value.items():
        if isinstance(item, dict) and item:
            output.say("  " * depth + title(name))
            _show_object(item, depth + 1)
        elif isinstance(item, list) and item and name not in simple:
            _show_list(name, item, depth)


def _show_list(name: str, items: list[Any], depth: int) -> None:
    if name:
        output.say("  " * depth + title(name))
    if all(isinstance(item, dict) for item in items):
        _show_objects(items, depth)
        return
    for line, run in itertools.groupby(cell(name, item) for item in items):
        times = len(list(run))
        output.say("  " * (depth + 1) + line + (f" x {times}" if times > 1 else ""))


def _show_objects(items: list[dict[str, Any]], depth: int) -> None:
    """A table, unless an object holds more than a cell can show."""
    if not any(isinstance(value, dict | list) for item in items for value in item.values()):
        output.show_table(_table(items), indent=2 * (depth + 1))
        return
    for item in items:
        _show_object(item, depth + 1)
        output.say()


def _table(items: list[dict[str, Any]]) -> output.Table:
    names = list(dict.fromkeys(name for item in items for name in item))
    right = frozenset(
        title(name)
        for name in names
        if all(isinstance(item.get(name, 0), int | float) for item in items)
    )
    rows = tuple(tuple(cell(name, item.get(name)) for name in names) for item in items)
    return output.Table(tuple(title(name) for name in names), rows, right)


def _is_simple(value: Any) -> bool:
    """What stands on the line of its name: no object, and of lists only a range."""
    if isinstance(value, list):
        return len(value) == 2 and all(isinstance(end, int | float) for end in value)
    return not isinstance(value, dict)


def title(name: str) -> str:
    for ending, unit in _UNITS:
        if name.endswith(ending):
            name = name.removesuffix(ending) + unit
            break
    return name.replace("_", " ")


def cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and (name.endswith("_bytes") or name in ("bytes", "nbytes")):
        return output.size_text(int(value))
    if isinstance(value, int | float) and name.endswith("_bytes_per_s"):
        return f"{output.size_text(int(value))}/s"
    if isinstance(value, int):
        return str(value) if name.endswith("pid") else f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if isinstance(value, list) and _is_simple(value):
        return " to ".join(cell(name, end) for end in value)
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
