"""`config set` and `unset`: one key changes, comments and order survive, the file never tears."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit
import tomlkit.items

from swiftlmd.config.key_hash import key_hash
from swiftlmd.config.load import (
    ConfigError,
    Configuration,
    checked_document,
    option_named,
    read_file,
)
from swiftlmd.config.settings import Option
from swiftlmd.config.values import BadValue, checked, plain


def set_value(path: Path, key: str, text: str, environ: Mapping[str, str]) -> Configuration:
    """Writes one option and returns the configuration as it then is; raises ConfigError."""
    option = option_named(key)
    value = plain(option, text)
    value_of(key, text)  # raises for one that cannot be
    if option.name == "http_api_keys":
        value = [key_hash(text) for text in value]
    return _change(path, option, value, environ)


def value_of(key: str, text: str | None) -> Any:
    """What an option set to `text` is in Settings, its default for None; raises ConfigError."""
    option = option_named(key)
    if text is None:
        return option.default
    try:
        return checked(option, plain(option, text))
    except BadValue as error:
        raise ConfigError(str(error)) from error


def unset_value(path: Path, key: str, environ: Mapping[str, str]) -> Configuration:
    """Removes one option from the file, so that its default holds again."""
    return _change(path, option_named(key), None, environ)


def write_atomically(path: Path, text: str) -> None:
    """`path` holds either its old or its new text, also after a crash or on a full disk."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    target = path.resolve()  # a config.toml that links into a dotfiles folder stays a link
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(draft, "w", encoding="utf-8", opener=_private) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            os.chmod(draft, target.stat().st_mode & 0o777)
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)


def _change(
    path: Path,
    option: Option,
    value: Any,  # a TOML value, None = remove
    environ: Mapping[str, str],
) -> Configuration:
    before = read_file(path)
    document = tomlkit.parse(tomlkit.dumps(before))
    table, _, name = option.key.partition(".")
    section: Any = document.get(table)  # Any: tomlkit's containers are loosely typed
    if section is None and value is not None:
        section = document[table] = tomlkit.table()
        section = document[table]
    if value is not None:
        section[name] = value
    elif section is not None:
        section.pop(name, None)
    found = checked_document(document, path, environ, {})  # raises before anything is written
    text = tomlkit.dumps(document)
    if text != tomlkit.dumps(before):
        _write(path, text)
    return found


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
