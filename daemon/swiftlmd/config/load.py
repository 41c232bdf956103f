"""Settings from their four sources, each value with the origin that decided it."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
import tomlkit.exceptions

from swiftlmd.config.settings import OPTIONS, PER_MODEL, Option, Settings
from swiftlmd.config.values import BadValue, checked, parsed


class ConfigError(Exception):
    """The configuration cannot be used; the message names the file, the key and the fix."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings and, for each key, where its value came from: default, file, environment, flag."""

    settings: Settings
    origins: Mapping[str, str]
    path: Path


def load(path: Path, environ: Mapping[str, str], flags: Mapping[str, str]) -> Configuration:
    """Reads and checks everything; raises ConfigError. A missing file is an empty one."""
    return checked_document(read_file(path), path, environ, flags)


def checked_document(
    document: tomlkit.TOMLDocument,
    path: Path,
    environ: Mapping[str, str],
    flags: Mapping[str, str],
) -> Configuration:
    """As `load`, of what `path` holds or is to hold."""
    values: dict[str, Any] = {}
    origins = dict.fromkeys(OPTIONS, "default")
    for key, value in _from_file(document, path):
        values[key], origins[key] = value, "file"
    for origin, found in (
        ("environment", _from_environment(environ)),
        ("flag", ((key, text, option_named(key).flag) for key, text in flags.items())),
    ):
        for key, text, where in found:
            values[key], origins[key] = _parsed(OPTIONS[key], text, where), origin
    fields = {OPTIONS[key].name: value for key, value in values.items()}
    settings = Settings(**fields, model=_per_model(document, path))
    return Configuration(settings, types.MappingProxyType(origins), path)


def read_file(path: Path) -> tomlkit.TOMLDocument:
    """config.toml with its comments; an empty document when there is none."""
    try:
        # As bytes: reading as text would give a file of Windows other line ends.
        return tomlkit.parse(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        return tomlkit.document()
    except (tomlkit.exceptions.TOMLKitError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Place:
    """Where an option stands in the file; `model` is empty for what holds for all."""

    option: Option
    model: str = ""

    @property
    def tables(self) -> tuple[str, ...]:
        return ("model", self.model) if self.model else (self.option.key.partition(".")[0],)

    @property
    def name(self) -> str:
        return self.option.key.partition(".")[2]

    @property
    def key(self) -> str:
        return model_key(self.model, self.name) if self.model else self.option.key


def model_key(model: str, name: str) -> str:
    """Of an option in a model's own table."""
    return f'model."{model}".{name}'


def place_of(key: str) -> Place:
    """Of `http.port`, or of `model."NAME".context`, whose quotes may be left off. Raises
    ConfigError for an unknown one, naming the nearest."""
    if key in OPTIONS:
        return Place(OPTIONS[key])
    rest = key.removeprefix("model.")
    model, dot, name = rest.rpartition(".")
    model = model[1:-1] if len(model) > 2 and model[0] == model[-1] == '"' else model
    if rest == key or not dot or not model:
        raise unknown_option(key)
    if name not in PER_MODEL:
        raise ConfigError(f"a model has no option '{name}'{_nearest(name, PER_MODEL)}")
    return Place(PER_MODEL[name], model)


def option_named(key: str) -> Option:
    """The option with this key; an unknown one is an error that names the nearest."""
    return place_of(key).option


def unknown_option(key: str) -> ConfigError:
    if key.split(".")[0] == "model":
        return ConfigError(f"'{key}' is not an option: write model.\"NAME\".OPTION")
    return ConfigError(f"unknown option '{key}'{_nearest(key, OPTIONS)}")


def _nearest(key: str, known: Iterable[str]) -> str:
    known = list(known)
    named = [one for one in known if one.rpartition(".")[2] == key]
    close = named[:1] or difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


def _from_file(document: tomlkit.TOMLDocument, path: Path) -> Iterator[tuple[str, Any]]:
    tables = sorted({key.partition(".")[0] for key in OPTIONS})
    for table, content in document.unwrap().items():
        if table == "model":
            continue
        if table not in tables:
            raise ConfigError(f"{path}: unknown table [{table}]{_nearest(table, tables)}")
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: '{table}' must be a table: write [{table}]")
        for name, value in content.items():
            key = f"{table}.{name}"
            if key not in OPTIONS:
                raise ConfigError(f"{path}: unknown option '{key}'{_nearest(key, OPTIONS)}")
            yield key, _checked(OPTIONS[key], value, path)


def _per_model(document: tomlkit.TOMLDocument, path: Path) -> Mapping[str, Mapping[str, Any]]:
    tables = document.unwrap().get("model", {})
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise ConfigError(f'{path}: write one table per model: [model."NAME"]')
    return types.MappingProxyType(
        {name: _one_model(name, table, path) for name, table in tables.items()}
    )


def _one_model(name: str, table: dict[str, Any], path: Path) -> Mapping[str, Any]:
    values = {}
    for key, value in table.items():
        if key not in PER_MODEL:
            where = f'{path}: [model."{name}"]'
            raise ConfigError(f"{where}: unknown option '{key}'{_nearest(key, PER_MODEL)}")
        values[key] = _checked(PER_MODEL[key], value, path)
    return types.MappingProxyType(values)


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for option in OPTIONS.values():
        text = environ.get(option.environment_name)
        if text is not None:
            yield option.key, text, option.environment_name


def _checked(option: Option, value: object, path: Path) -> Any:  # Any: depends on the option
    try:
        return checked(option, value)
    except BadValue as error:
        raise ConfigError(f"{path}: {error}") from error


def _parsed(option: Option, text: str, where: str) -> Any:  # Any: depends on the option
    try:
        return parsed(option, text)
    except BadValue as error:
        raise ConfigError(f"{where}: {error}") from error
