"""Old names of options: config.toml is brought up to date once, and its old text is kept.

An option that gets a new name is entered in RENAMED, so that a user's file from before the
upgrade goes on working; the copy beside it serves a way back.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit

from swiftlmd.config.edit import write_atomically
from swiftlmd.config.load import read_file

# old key -> new key. None so far.
RENAMED: Mapping[str, str] = {}


def migrate(path: Path, renamed: Mapping[str, str] = RENAMED) -> Path | None:
    """Gives old keys their new names; returns the copy of the old file if there was any.

    Where both names are set the new one holds. Raises ConfigError for a file that is no TOML.
    """
    document = read_file(path)
    before = tomlkit.dumps(document)
    if not bring_up_to_date(document, renamed):
        return None
    kept = path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}.bak")
    write_atomically(kept, before)
    write_atomically(path, tomlkit.dumps(document))
    return kept


def bring_up_to_date(document: tomlkit.TOMLDocument, renamed: Mapping[str, str] = RENAMED) -> bool:
    """The same in memory; whether there was an old key."""
    old = [key for key in renamed if _has(document, key)]
    for key in old:
        _move(document, key, renamed[key])
    return bool(old)


def _has(document: tomlkit.TOMLDocument, key: str) -> bool:
    table, _, name = key.partition(".")
    content = document.get(table)
    return isinstance(content, dict) and name in content


def _move(document: tomlkit.TOMLDocument, key: str, new: str) -> None:
    table, _, name = key.partition(".")
    new_table, _, new_name = new.partition(".")
    old_section: Any = document[table]  # Any: tomlkit's containers are loosely typed
    value = old_section.pop(name)
    if new_table not in document:
        document[new_table] = tomlkit.table()
    section: Any = document[new_table]
    if new_name not in section:
        section[new_name] = value
