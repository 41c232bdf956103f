"""Small edits of other programs' configuration files, which keep what people wrote there.

Members are set in JSON's text, keys and tables in TOML and YAML stand between two marks: not a
byte changes besides ours. What cannot be edited safely raises `Unsafe`, and the caller prints the
text for a person to paste. The way back is in `entries.py`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any  # JSON values

from swiftlmctl.connect.json_text import with_member
from swiftlmctl.connect.toml_text import lines_of, statements

BEGIN = "# >>> swiftlm >>>"
END = "# <<< swiftlm <<<"
SET_ASIDE = "  # set aside by swiftlm"


class Unsafe(Exception):
    """This file is not for a program to edit; the message says why."""


def merged_json(text: str, changes: dict[str, Any]) -> str:
    """`text` with `changes` laid over it, object by object."""
    blank = not text.strip()
    if blank:
        text = "{}\n"
    found = parsed_json(text)
    result = _with_members(text, (), found, changes)
    if parsed_json(result) != _merged(found, changes):
        raise Unsafe("one name stands twice in it")
    return result


def parsed_json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as e:
        # Comments are allowed by several of these programs.
        raise Unsafe("it is not plain JSON (comments?)") from e
    if not isinstance(found, dict):
        raise Unsafe("it does not hold an object")
    return found


def _with_members(
    text: str, path: tuple[str, ...], below: dict[str, Any], above: dict[str, Any]
) -> str:
    for key, value in above.items():
        under = below.get(key)
        if isinstance(value, dict) and isinstance(under, dict):
            text = _with_members(text, (*path, key), under, value)
        elif key not in below or under != value:
            text = with_member(text, (*path, key), value)
    return text


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        both = isinstance(value, dict) and isinstance(under, dict)
        result[key] = _merged(under, value) if both and under is not None else value
    return result


def toml_with(text: str, top: Mapping[str, str | int], tables: str) -> str:
    """`text` with plain keys at its top and one table at its end, in marked blocks.

    A key that the file sets itself is commented out: TOML allows no second one.
    """
    _check_toml(text)
    ours = {found.path for found in statements(lines_of(tables))} | {(key,) for key in top}
    rest = _set_aside(without_blocks(text, ours), top)
    newline = "\r\n" if "\r\n" in text else "\n"
    head = _block("\n".join(f"{key} = {json.dumps(value)}" for key, value in top.items()))
    kept_header, _, keys = tables.partition("\n")
    lines = lines_of(rest)
    header = next((i for i, line in enumerate(lines) if line.strip() == kept_header), None)
    if header is None:
        body = f"{_ended(rest, newline)}\n{_block(tables)}" if rest else _block(tables)
    else:  # somebody added keys to our table
        body = "".join([*lines[: header + 1], "\n", _block(keys), *lines[header + 1 :]])
    result = f"{head}\n{body}".replace("\r\n", "\n").replace("\n", newline)
    _check_toml(result)
    return result


def _set_aside(text: str, keys: Mapping[str, str | int]) -> str:
    lines = lines_of(text)
    for found in list(statements(lines)):
        if not found.table and found.key and found.key[0] in keys:
            for i in range(found.first, found.last):
                bare = lines[i].rstrip("\r\n")
                lines[i] = f"# {bare}{SET_ASIDE}{lines[i][len(bare) :] or chr(10)}"
    return "".join(lines)


def _check_toml(text: str) -> None:
    try:
        tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as e:
        raise Unsafe(f"it is not sound TOML ({e})") from e


def yaml_with(text: str, keys: dict[str, str]) -> str:
    """`text` with plain top-level keys in a marked block; refuses keys that are already there."""
    if "\0" in text:
        raise Unsafe("it is not a text in UTF-8")
    rest = _without_yaml_block(text, keys)
    for key in keys:
        if re.search(rf"(?m)^{re.escape(key)}\s*:", rest):
            raise Unsafe(f"it already sets {key}")
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = "\n".join(f"{key}: {json.dumps(value)}" for key, value in keys.items())
    block = _block(lines).replace("\n", newline)
    return f"{_ended(rest, newline)}{newline}{block}" if rest else block


def without_blocks(text: str, ours: set[tuple[str, ...]]) -> str:
    """TOML without our marks and, between them, without the statements of our paths.

    Between them may stand what another program wrote: it adds a key behind the last one.
    """
    lines = lines_of(text)
    found = list(statements(lines))
    between = {i for first, last in _blocks(lines) for i in range(first, last)}
    gone = mark_lines(lines)
    for one in found:
        if one.first in between and one.key and one.path in ours:
            gone.update(range(one.first, one.last))
    for one in found:
        if one.first in between and one.is_header and one.path in _tables(ours):
            inside = [s for s in found if s.table == one.table and s.key and s.first not in gone]
            if not inside:
                gone.add(one.first)
    return "".join(line for i, line in enumerate(lines) if i not in gone)


def mark_lines(lines: Sequence[str]) -> set[int]:
    """Our marks, each with the empty line by which we kept it from the rest."""
    marks = {i for i, line in enumerate(lines) if line.rstrip("\r\n") in (BEGIN, END)}
    for first, last in _blocks(lines):
        empty = last if first == 0 else first - 1
        if empty < len(lines) and not lines[empty].strip():
            marks.add(empty)
    return marks


def _tables(paths: set[tuple[str, ...]]) -> set[tuple[str, ...]]:
    return {path[:i] for path in paths for i in range(1, len(path) + 1)}


def _blocks(lines: Sequence[str]) -> list[tuple[int, int]]:
    """From each begin mark to behind its end mark; a mark without its partner stands for none."""
    found, begin = [], None
    for i, line in enumerate(lines):
        if line.rstrip("\r\n") == BEGIN:
            begin = i
        elif line.rstrip("\r\n") == END and begin is not None:
            found.append((begin, i + 1))
            begin = None
    return found


def _without_yaml_block(text: str, keys: dict[str, str]) -> str:
    lines = lines_of(text)
    between = {i for first, last in _blocks(lines) for i in range(first, last)}
    ours = {i for i in between if lines[i].partition(":")[0].rstrip() in keys}
    gone = mark_lines(lines) | ours
    return "".join(line for i, line in enumerate(lines) if i not in gone)


def _ended(text: str, newline: str) -> str:
    return text + newline if text and not text.endswith("\n") else text


def _block(lines: str) -> str:
    return f"{BEGIN}\n{lines.strip()}\n{END}\n"
