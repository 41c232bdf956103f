"""`config set` and `unset`: one key changes, comments and order survive, the file never tears."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit
import tomlkit.items

from swiftlm_proto import user_files
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

# How often another program may write the file while an option is being set.
_TRIES = 5


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
    user_files.overwrite(path, text.encode())


def _change(
    path: Path,
    option: Option,
    value: Any,  # a TOML value, None = remove
    environ: Mapping[str, str],
) -> Configuration:
    for _ in range(_TRIES):
        try:
            return _write(path, option, value, environ)
        except user_files.ChangedMeanwhile as error:
            changed = error
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
    raise ConfigError(f"{path}: {changed.strerror}") from changed


def _write(path: Path, option: Option, value: Any, environ: Mapping[str, str]) -> Configuration:
    """Changes one key of the file as it is now; raises OSError and ConfigError."""
    before = user_files.read(path)
    document = read_file(path)
    old = tomlkit.dumps(document)
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
    if text != old:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        user_files.replace(path, text.encode(), before=before)
    return found
