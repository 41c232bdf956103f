"""`config set` and `unset`: one key changes, comments and order survive, the file never tears."""

from __future__ import annotations

import contextlib
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
    Place,
    checked_document,
    option_named,
    place_of,
    read_file,
)
from swiftlmd.config.values import BadValue, checked, plain

# How often another program may write the file while an option is being set.
_TRIES = 5


def set_value(path: Path, key: str, text: str, environ: Mapping[str, str]) -> Configuration:
    """Writes one option and returns the configuration as it then is; raises ConfigError."""
    place = place_of(key)
    option, value = place.option, plain(place.option, text)
    value_of(key, text)  # raises for one that cannot be
    if option.name == "http_api_keys":
        value = [key_hash(text) for text in value]
    return _change(path, place, value, environ)


def hash_keys(path: Path) -> None:
    """Keys that somebody wrote into the file as they are become hashes there, where it can be
    written."""
    with contextlib.suppress(OSError, ConfigError):  # who reads it next says what is wrong with it
        before = user_files.read(path)
        document = read_file(path)
        http = document.unwrap().get("http")
        keys = http.get("api_keys", []) if isinstance(http, dict) else []
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            return
        hashed = [key_hash(key) for key in keys]
        if hashed != keys:
            section: Any = document["http"]  # Any: as below
            section["api_keys"] = hashed
            user_files.replace(path, tomlkit.dumps(document).encode(), before=before)


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
    return _change(path, place_of(key), None, environ)


def write_atomically(path: Path, text: str) -> None:
    """`path` holds either its old or its new text, also after a crash or on a full disk."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    user_files.overwrite(path, text.encode())


def _change(
    path: Path,
    place: Place,
    value: Any,  # a TOML value, None = remove
    environ: Mapping[str, str],
) -> Configuration:
    for _ in range(_TRIES):
        try:
            return _write(path, place, value, environ)
        except user_files.ChangedMeanwhile as error:
            changed = error
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
    raise ConfigError(f"{path}: {changed.strerror}") from changed


def _write(path: Path, place: Place, value: Any, environ: Mapping[str, str]) -> Configuration:
    """Changes one key of the file as it is now; raises OSError and ConfigError."""
    before = user_files.read(path)
    document = read_file(path)
    old = tomlkit.dumps(document)
    if value is None:
        _take_out(document, place)
    else:
        section: Any = document  # Any: tomlkit's containers are loosely typed
        for table in place.tables:
            if table not in section:
                section[table] = tomlkit.table(is_super_table=table != place.tables[-1])
            section = section[table]
        section[place.name] = value
    found = checked_document(document, path, environ, {})  # raises before anything is written
    text = tomlkit.dumps(document)
    checked_document(tomlkit.parse(text), path, environ, {})  # as it will be read
    if text != old:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        user_files.replace(path, text.encode(), before=before)
    return found


def _take_out(document: tomlkit.TOMLDocument, place: Place) -> None:
    """The option; a model's table goes with its last one."""
    sections: list[Any] = [document]  # Any: as above
    for table in place.tables:
        if table not in sections[-1]:
            return
        sections.append(sections[-1][table])
    sections[-1].pop(place.name, None)
    if place.model and not sections[-1]:
        del sections[1][place.model]
        if not sections[1]:
            del document["model"]
