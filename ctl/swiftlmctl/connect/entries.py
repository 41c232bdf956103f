"""What `connect` put into a settings file, entry by entry, and how to take just that out again.

An entry is a value at a path, with the value that stood there before. Taking out works on the
file as it is now, after its program and its user have written to it as they like: a value that is
still ours goes, or becomes what it was; one that somebody changed stays, and is named.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any  # values of JSON and TOML

from swiftlmctl.connect.edits import BEGIN, END, SET_ASIDE, Unsafe, mark_lines, parsed_json
from swiftlmctl.connect.json_text import with_member, without_member
from swiftlmctl.connect.toml_text import lines_of, with_root_key, without_path


@dataclass(frozen=True, slots=True)
class Entry:
    path: tuple[str, ...]  # of YAML, which the standard library does not read: (line,)
    value: Any = None
    existed: bool = False
    before: Any = None
    is_container: bool = False  # an object or table that was not there

    @property
    def name(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class TakenOut:
    text: str
    left: tuple[str, ...] = ()  # entries that somebody changed since
    found: bool = False  # anything of ours


def added(path: Path, before: str, after: str) -> list[Entry]:
    """The entries by which `after` differs from `before`; [] where the format is unknown."""
    try:
        if path.suffix == ".json":
            old = parsed_json(before) if before.strip() else {}
            return list(_differences((), old, parsed_json(after)))
        if path.suffix == ".toml":
            return list(_differences((), tomllib.loads(before), tomllib.loads(after)))
    except (Unsafe, tomllib.TOMLDecodeError):
        return []
    if path.suffix in (".yml", ".yaml"):
        there = [_bare(line) for line in lines_of(before)]
        new = (_bare(line) for line in lines_of(after))
        return [Entry((line,)) for line in new if line and line not in there]
    return []


def taken_out(path: Path, text: str, entries: Sequence[Entry]) -> TakenOut:
    """`text` without our entries; raises Unsafe where that cannot be done safely."""
    if path.suffix == ".json":
        return _out_of_json(text, entries)
    if path.suffix == ".toml":
        return _out_of_toml(text, entries)
    if path.suffix in (".yml", ".yaml"):
        return _out_of_yaml(text, [entry.path[0] for entry in entries])
    raise Unsafe("its format is unknown")


def plain(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    return [asdict(entry) for entry in entries]


def from_plain(found: Sequence[dict[str, Any]]) -> list[Entry]:
    return [Entry(**{**one, "path": tuple(one["path"])}) for one in found]


def is_blank(path: Path, text: str) -> bool:
    """Whether nothing stands in it any more."""
    return not text.strip() or (path.suffix == ".json" and text.split() in (["{}"], ["{", "}"]))


def _differences(
    path: tuple[str, ...], before: dict[str, Any], after: dict[str, Any]
) -> Iterator[Entry]:
    for key, value in after.items():
        here = (*path, key)
        existed, old = key in before, before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            yield from _differences(here, old, value)
        elif isinstance(value, dict) and value:
            yield Entry(here, None, existed, _storable(old), is_container=True)
            yield from _differences(here, {}, value)
        elif not existed or not _same(old, value):
            yield Entry(here, value, existed, _storable(old))


@dataclass(frozen=True, slots=True)
class _Change:
    path: tuple[str, ...]
    removes: bool
    value: Any = None


_NOTHING = object()  # unlike None, no value of JSON


def _changes(found: dict[str, Any], entries: Sequence[Entry]) -> tuple[list[_Change], list[str]]:
    """What to do to `found`, which becomes what it then is; and what somebody changed."""
    changes, left = [], []
    for entry in entries:
        parent = _parent(found, entry.path)
        if entry.is_container or parent is None or entry.path[-1] not in parent:
            continue
        value = parent[entry.path[-1]]
        rest = _without_ours(value, entry)
        if rest is _NOTHING:
            changes.append(_removed(parent, entry))
        elif not _same(rest, value):
            changes.append(_Change(entry.path, removes=False, value=rest))
            parent[entry.path[-1]] = rest
        elif not (entry.existed and _same(value, entry.before)):
            left.append(entry.name)
    for entry in reversed(entries):  # the innermost first
        parent = _parent(found, entry.path)
        if entry.is_container and parent is not None and parent.get(entry.path[-1]) == {}:
            changes.append(_removed(parent, entry))
    return changes, left


def _removed(parent: dict[str, Any], entry: Entry) -> _Change:
    if entry.existed:
        parent[entry.path[-1]] = entry.before
        return _Change(entry.path, removes=False, value=entry.before)
    del parent[entry.path[-1]]
    return _Change(entry.path, removes=True)


def _without_ours(value: Any, entry: Entry) -> Any:
    """What shall stand there instead of `value`; itself = it is not ours."""
    if _same(value, entry.value):
        return _NOTHING
    if isinstance(value, list) and isinstance(entry.value, list):
        old = entry.before if isinstance(entry.before, list) else []
        theirs = [one for one in value if not any(_same(one, ours) for ours in entry.value)]
        if len(theirs) < len(value):
            kept = [one for one in old if not any(_same(one, other) for other in theirs)]
            return kept + theirs
    return value


def _parent(found: dict[str, Any], path: Sequence[str]) -> dict[str, Any] | None:
    place: Any = found
    for key in path[:-1]:
        place = place.get(key) if isinstance(place, dict) else None
    return place if isinstance(place, dict) else None


def _out_of_json(text: str, entries: Sequence[Entry]) -> TakenOut:
    wanted = parsed_json(text) if text.strip() else {}
    changes, left = _changes(wanted, entries)
    for change in changes:
        if change.removes:
            text = without_member(text, change.path)
        else:
            text = with_member(text, change.path, change.value)
    if text.strip() and not _same(parsed_json(text), wanted):
        raise Unsafe("one name stands twice in it")
    return TakenOut(text, tuple(left), bool(changes))


def _out_of_toml(text: str, entries: Sequence[Entry]) -> TakenOut:
    try:
        wanted = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise Unsafe(f"it is not sound TOML ({e})") from e
    changes, left = _changes(wanted, entries)
    for result in (_with_lines_back(text, changes), _with_values_back(text, changes)):
        if result is not None and _reads_as(result, wanted):
            return TakenOut(result, tuple(left), bool(changes) or result != text)
    raise Unsafe("its tables are written in another way by now")


def _with_lines_back(text: str, changes: Sequence[_Change]) -> str | None:
    """With the lines that `connect` set aside back in their places."""
    for change in changes:
        text = without_path(text, change.path)
    returning = {change.path[0] for change in changes if not change.removes}
    lines = []
    for line in lines_of(_without_marks(text)):
        bare = line.rstrip("\r\n")
        if bare.startswith("# ") and bare.endswith(SET_ASIDE):
            inside = bare.removeprefix("# ").removesuffix(SET_ASIDE)
            line = inside + line[len(bare) :] if returning else ""
        lines.append(line)
    return "".join(lines)


def _with_values_back(text: str, changes: Sequence[_Change]) -> str | None:
    """Where those lines are gone, or stand where they mean something else."""
    for change in changes:
        text = without_path(text, change.path)
    kept = [x for x in lines_of(_without_marks(text)) if not x.rstrip("\r\n").endswith(SET_ASIDE)]
    text = "".join(kept)
    for change in changes:
        if change.removes:
            continue
        if len(change.path) > 1 or not isinstance(change.value, str | int | float):
            return None
        text = with_root_key(text, change.path[0], change.value)
    return text


def _without_marks(text: str) -> str:
    lines = lines_of(text)
    gone = mark_lines(lines)
    return "".join(line for i, line in enumerate(lines) if i not in gone)


def _reads_as(text: str, wanted: dict[str, Any]) -> bool:
    try:
        return _same(tomllib.loads(text), wanted)
    except tomllib.TOMLDecodeError:
        return False


def _out_of_yaml(text: str, ours: Sequence[str]) -> TakenOut:
    """Top-level keys one by one; what is indented only as the whole item that we wrote."""
    lines = lines_of(text)
    bare = [_flat(_bare(line)) for line in lines]
    item = [_flat(line) for line in ours if line.startswith(" ")]
    start = next((i for i in range(len(bare)) if item and bare[i : i + len(item)] == item), None)
    gone = set(range(start, start + len(item))) if start is not None else set()
    keys = {_flat(line) for line in ours if not line.startswith(" ") and line not in (BEGIN, END)}
    top = {i for i, line in enumerate(bare) if line in keys}
    others = [i for i, line in enumerate(bare) if line and i not in gone | top]
    if not item or not others:
        gone |= top  # beside other models the file still needs its name and version
    found = bool(gone)
    gone |= mark_lines(lines)
    left = ("models",) if item and start is None else ()
    kept = "".join(line for i, line in enumerate(lines) if i not in gone)
    return TakenOut(kept, left, found)


def _flat(line: str) -> str:
    """The same for a value in quotes and for a plain one."""
    match = re.match(r"(\s*(?:- )?[\w.-]+:)\s*(['\"]?)(.*)\2\s*$", line)
    return f"{match.group(1)} {match.group(3)}" if match else line.rstrip()


def _bare(line: str) -> str:
    return line.rstrip("\r\n")


def _same(left: Any, right: Any) -> bool:
    """Unlike ==, true is not 1; unlike is, the order of members does not count."""
    return json.dumps(left, sort_keys=True, default=repr) == json.dumps(
        right, sort_keys=True, default=repr
    )


def _storable(value: Any) -> Any:
    """TOML's dates have no place in a record of JSON: they come back by their line."""
    return json.loads(json.dumps(value, default=str))
