"""The configuration of a running daemon: read once, replaced whole on a reload."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swiftlmd.config.edit import hash_keys, set_value, unset_value, value_of
from swiftlmd.config.http import http_options
from swiftlmd.config.load import (
    ConfigError,
    Configuration,
    checked_document,
    load,
    model_key,
    place_of,
    read_file,
)
from swiftlmd.config.migrate import bring_up_to_date
from swiftlmd.config.settings import OPTIONS, PER_MODEL, Settings
from swiftlmd.config.values import shown


@dataclass(frozen=True, slots=True)
class Changes:
    """What a reload changed: keys that hold at once, and keys that wait for a restart."""

    now: tuple[str, ...]
    after_restart: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One option as `config show` prints it."""

    key: str
    value: str
    origin: str
    help: str
    needs_restart: bool
    form: str
    default: str


class LiveConfiguration:
    """Holds the current Settings. A configuration that cannot be read changes nothing."""

    def __init__(
        self, configuration: Configuration, environ: Mapping[str, str], flags: Mapping[str, str]
    ) -> None:
        self._configuration = configuration
        self._started_with = configuration.settings
        self._environ = environ
        self._flags = flags
        self._looked_at: object = None  # the state of the file that `problem` is about
        self._problem = ""
        self._changing = threading.Lock()  # guards read, change and write of the file

    @property
    def settings(self) -> Settings:
        return self._configuration.settings

    @property
    def path(self) -> Path:
        return self._configuration.path

    @property
    def waiting_for_restart(self) -> tuple[str, ...]:
        """What differs from the settings that this process runs by, and cannot be taken over."""
        now, before = self.settings, self._started_with
        return tuple(
            option.key
            for option in OPTIONS.values()
            if option.needs_restart and getattr(now, option.name) != getattr(before, option.name)
        )

    def reload(self) -> Changes:
        """Reads the file again; raises ConfigError and keeps what is."""
        with self._changing:
            return self._reload()

    def set(self, key: str, text: str) -> Changes:
        """Writes one option into the file and takes it over; raises ConfigError."""
        with self._changing:
            self._refuse_unfit(key, text)
            set_value(self.path, key, text, self._environ)
            return self._reload()

    def unset(self, key: str) -> Changes:
        """Removes one option from the file; raises ConfigError."""
        with self._changing:
            self._refuse_unfit(key, None)
            unset_value(self.path, key, self._environ)
            return self._reload()

    def entries(self, prefix: str = "") -> list[ConfigEntry]:
        """Every option and those of models' own tables, or what has the key or table `prefix`."""
        settings, origins = self.settings, self._configuration.origins
        if prefix.split(".")[0] == "model":
            return self._of_models(prefix)
        own = [] if prefix else self._of_models("model")
        found = [
            ConfigEntry(
                key=key,
                value=shown(option, getattr(settings, option.name)),
                origin=origins[key],
                help=option.help,
                needs_restart=option.needs_restart,
                form=option.accepts,
                default=shown(option, option.default),
            )
            for key, option in OPTIONS.items()
            if not prefix or key == prefix or key.startswith(prefix + ".")
        ]
        return found + own

    def _of_models(self, prefix: str) -> list[ConfigEntry]:
        """What the tables [model."NAME"] say, or one option of a model, set there or not."""
        wanted = None if prefix == "model" else place_of(prefix)
        tables = self.settings.model if wanted is None else {wanted.model: [wanted.name]}
        return [self._own_entry(model, name) for model, names in tables.items() for name in names]

    def _own_entry(self, model: str, name: str) -> ConfigEntry:
        option, is_own = PER_MODEL[name], name in self.settings.model.get(model, {})
        value = getattr(self.settings.for_model(model), option.name)
        usual = shown(option, getattr(self.settings, option.name))
        origin = "file" if is_own else self._configuration.origins[option.key]
        key, meaning = model_key(model, name), f"For {model} alone. {option.help}"
        form = option.accepts
        return ConfigEntry(key, shown(option, value), origin, meaning, False, form, usual)

    def changed(self, changes: Changes) -> list[ConfigEntry]:
        """What is in force now of what a reload changed; a model's table is one entry."""
        keys = (*changes.now, *changes.after_restart)
        return [
            entry
            for key in keys
            for entry in (self.entries(key) if key in OPTIONS else [self._model_entry(key)])
        ]

    def _model_entry(self, key: str) -> ConfigEntry:
        name = key.removeprefix("model.")
        table = self.settings.model.get(name, {})
        value = ", ".join(f"{each} = {shown(PER_MODEL[each], v)}" for each, v in table.items())
        origin = "file" if name in self.settings.model else "default"
        return ConfigEntry(key, value, origin, f"What holds for {name} alone.", False, "table", "")

    def check_file(self) -> None:
        """Raises ConfigError if this daemon, started again, would not take the file as it is."""
        check_file(self.path, self._environ, self._flags)

    def problem(self) -> str:
        """Why it would not, while the settings of before are in force; the file is read again only
        when it has changed."""
        stamp = _stamp(self.path)
        if stamp != self._looked_at:
            self._looked_at, self._problem = stamp, ""
            try:
                self.check_file()
            except ConfigError as error:
                self._problem = str(error)
        return self._problem

    def _refuse_unfit(self, key: str, text: str | None) -> None:
        """Before anything is written."""
        value, place = value_of(key, text), place_of(key)
        if not place.model:
            http_options(dataclasses.replace(self.settings, **{place.option.name: value}))

    def _reload(self) -> Changes:
        hash_keys(self.path)
        found = load(self.path, self._environ, self._flags)
        http_options(found.settings)
        return self._take(found)

    def _take(self, new: Configuration) -> Changes:
        old, self._configuration = self._configuration.settings, new
        changed = [
            option
            for option in OPTIONS.values()
            if getattr(old, option.name) != getattr(new.settings, option.name)
        ]
        before, now = old.model, new.settings.model
        models = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        return Changes(
            (
                *(option.key for option in changed if not option.needs_restart),
                *(f"model.{name}" for name in models),
            ),
            tuple(option.key for option in changed if option.needs_restart),
        )


def check_file(path: Path, environ: Mapping[str, str], flags: Mapping[str, str]) -> None:
    """Raises ConfigError for a file that `serve` would not start with."""
    document = read_file(path)
    bring_up_to_date(document)
    http_options(checked_document(document, path, environ, flags).settings)


def _stamp(path: Path) -> object:
    try:
        found = path.stat()
    except OSError as error:
        return error.errno
    return found.st_mtime_ns, found.st_size, found.st_ino
