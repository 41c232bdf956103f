"""What the store remembers between runs: pinned revisions, added folders, pulls under way.

One small JSON file per fact, written whole and renamed; one that cannot be read counts as absent.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar
from urllib.parse import quote


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
    """All facts of one kind, by name."""

    def __init__(self, folder: Path, shape: type[Fact]) -> None:
        self._folder = folder
        self._shape = shape

    def put(self, fact: Fact) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._path(fact.name)
        draft = path.with_suffix(f".{os.getpid()}.tmp")
        with draft.open("w", encoding="utf-8") as f:
            json.dump({n: getattr(fact, n) for n in self._fields()}, f)
            f.flush()
            os.fsync(f.fileno())
        draft.replace(path)

    def get(self, name: str) -> Fact | None:
        return self._read(self._path(name))

    def all(self) -> list[Fact]:
        found = map(self._read, sorted(self._folder.glob("*.json")))
        return [fact for fact in found if fact is not None]

    def drop(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{quote(name, safe='')}.json"

    def _fields(self) -> list[str]:
        return [f.name for f in dataclasses.fields(self._shape)]  # type: ignore[arg-type]

    def _read(self, path: Path) -> Fact | None:
        try:
            fields = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(fields, dict) or sorted(fields) != sorted(self._fields()):
            return None
        return self._shape(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})


class Records:
    """Every kind, below one folder of the daemon's state."""

    def __init__(self, folder: Path) -> None:
        self.pinned = Notes(folder / "pinned", Pinned)
        self.pulls = Notes(folder / "pulls", Wanted)
        self.folders = Notes(folder / "folders", Added)
