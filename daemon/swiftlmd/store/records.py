"""What the store remembers between runs: pinned revisions, added folders, pulls under way.

One small JSON file per fact, written whole and renamed; one that cannot be read, or whose values
have other types, counts as absent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote

_LONGEST_NAME = 200  # bytes of a file's name; disks allow 255, and a draft's is longer


@dataclass(frozen=True, slots=True)
class Pinned:
    """A hub model as it was pulled. The commit stays until somebody pulls another revision."""

    name: str
    revision: str  # what was asked for
    commit: str
    files: tuple[str, ...]
    size_bytes: int
    licence: str
    pulled_at: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Wanted:
    """A pull that has begun and not ended; a new daemon goes on with it."""

    name: str
    revision: str
    include: tuple[str, ...]
    save_as: str = ""  # the model's name, where it does not follow from the others

    @property
    def key(self) -> str:
        """Tells pulls of one name apart."""
        rest = "\0".join((self.revision, self.save_as, *self.include))
        return f"{self.name}@{hashlib.sha256(rest.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Added:
    """A folder of the user's that is listed under this name."""

    name: str
    path: str


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Fact = TypeVar("Fact", bound=_Named)


class Notes(Generic[Fact]):
    """All facts of one kind, by their key: the name, unless several facts may have one name."""

    def __init__(
        self, folder: Path, shape: type[Fact], key: Callable[[Fact], str] = lambda fact: fact.name
    ) -> None:
        self._folder = folder
        self._shape = shape
        self._key = key

    def put(self, fact: Fact) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._path(self._key(fact))
        draft = path.with_suffix(f".{os.getpid()}.tmp")
        with draft.open("w", encoding="utf-8") as f:
            json.dump({field.name: getattr(fact, field.name) for field in self._fields()}, f)
            f.flush()
            os.fsync(f.fileno())
        draft.replace(path)

    def get(self, key: str) -> Fact | None:
        fact = self._read(self._path(key))
        # A disk that ignores case gives the note of another spelling.
        return fact if fact is not None and self._key(fact) == key else None

    def all(self) -> list[Fact]:
        found = map(self._read, sorted(self._folder.glob("*.json")))
        return list(dict.fromkeys(fact for fact in found if fact is not None))

    def drop(self, name: str) -> None:
        """All facts of that name."""
        self._unlink(lambda fact: fact.name == name)

    def forget(self, fact: Fact) -> None:
        """This one alone."""
        self._unlink(lambda other: other == fact)

    def _unlink(self, chosen: Callable[[Fact], bool]) -> None:
        """By content: an earlier version named the files otherwise."""
        for path in self._folder.glob("*.json"):
            fact = self._read(path)
            if fact is not None and chosen(fact):
                path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        name = quote(key, safe="")
        if len(name) > _LONGEST_NAME:
            name = f"{name[:100]}.{hashlib.sha256(key.encode()).hexdigest()[:32]}"
        return self._folder / f"{name}.json"

    def _fields(self) -> tuple[dataclasses.Field[Any], ...]:
        return dataclasses.fields(self._shape)  # type: ignore[arg-type]  # every shape is one

    def _read(self, path: Path) -> Fact | None:
        try:
            values = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        fields = {field.name: field for field in self._fields()}
        if not isinstance(values, dict) or not values.keys() <= fields.keys():
            return None
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        needed = {name for name, field in fields.items() if field.default is MISSING}
        fits = all(_has_type(value, str(fields[name].type)) for name, value in values.items())
        return self._shape(**values) if fits and needed <= values.keys() else None


def _has_type(value: object, annotation: str) -> bool:
    match annotation:
        case "str":
            return isinstance(value, str)
        case "tuple[str, ...]":
            return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
        case "int":
            return type(value) is int
        case "float":
            return type(value) in (int, float)
    raise TypeError(f"no note has a field of type {annotation}")


class Records:
    """Every kind, below one folder of the daemon's state."""

    def __init__(self, folder: Path) -> None:
        self.pinned = Notes(folder / "pinned", Pinned)
        self.pulls = Notes(folder / "pulls", Wanted, key=lambda wanted: wanted.key)
        self.folders = Notes(folder / "folders", Added)
