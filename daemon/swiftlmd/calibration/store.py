"""Calibration records on disk: one JSON file per model and circumstances, replaced atomically.

The circumstances are all that changes a figure without changing the model: machine, system, MLX,
our own version. A record made under others is no record, and goes when the next one is kept.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any  # JSON values

from swiftlm_engine.brain.calibration import BadRecord, Choices, Record
from swiftlm_engine.brain.plan import MachineLimits
from swiftlm_proto.version import version

log = logging.getLogger(__name__)

# The least and the most that a person may choose.
_CHOICES = {
    "prefill_chunk": (1, 1 << 17),
    "parallel": (1, 1024),
    "buffer_cache_bytes": (0, 1 << 40),
    "kv_threshold": (0, 1 << 30),
}


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The part of the key that is not the model."""

    device: str
    memory_bytes: int
    num_cores: int
    system: str
    mlx: str
    swiftlm: str


@dataclass(frozen=True, slots=True)
class Manner:
    """How the model ran when it was measured; another way of running it is not predicted."""

    strategy: str
    dtype: str
    gpu_layers: int | None = None
    expanded: str = ""  # which quantized weights were float32


@dataclass(frozen=True, slots=True)
class Kept:
    """A record with its key. `edited` names the choices that a person has made."""

    model: str
    fingerprint: str
    quantisation: str
    circumstances: Circumstances
    manner: Manner
    record: Record
    date: float  # seconds since the epoch
    edited: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def circumstances_of(limits: MachineLimits) -> Circumstances:
    return Circumstances(
        device=f"{limits.accelerator.value} {limits.device_name}".strip(),
        memory_bytes=limits.ram_bytes,
        num_cores=limits.num_cores,
        system=f"{platform.system()} {platform.release()}",
        mlx=_installed("mlx"),
        swiftlm=version(),
    )


class CalibrationStore:
    """Reads and writes small files; call it in a thread, or where a millisecond does not matter."""

    def __init__(
        self, folder: Path, circumstances: Callable[[MachineLimits], Circumstances] | None = None
    ) -> None:
        self._folder = folder
        self._circumstances = circumstances or circumstances_of

    def find(self, fingerprint: str, limits: MachineLimits) -> Kept | None:
        """The record of this model that holds here and now."""
        return _read(self._path(fingerprint, self._circumstances(limits)))

    def keep(
        self,
        model: str,
        fingerprint: str,
        quantisation: str,
        limits: MachineLimits,
        manner: Manner,
        record: Record,
        date: float,
    ) -> Kept:
        """Replaces what was known of the model, under any circumstances."""
        here = self._circumstances(limits)
        kept = Kept(model, fingerprint, quantisation, here, manner, record, date)
        path = self._write(kept)  # first: a full disk must not cost the old record
        for other in self._paths(fingerprint):
            if other != path:
                other.unlink(missing_ok=True)
        return kept

    def edit(self, kept: Kept, choices: dict[str, int]) -> Kept:
        """Choices by hand; they hold until the record goes. Raises ValueError for nonsense."""
        for name, value in choices.items():
            if name not in _CHOICES:
                raise ValueError(f"no choice '{name}': there are {', '.join(_CHOICES)}")
            least, most = _CHOICES[name]
            if not least <= value <= most:
                raise ValueError(f"{name} {value}: give {least} to {most:,}")
        changed: Choices = replace(kept.record.choices, **choices)
        record = replace(kept.record, choices=changed)
        edited = tuple(sorted({*kept.edited, *choices}))
        kept = replace(kept, record=record, edited=edited)
        self._write(kept)
        return kept

    def clear(self, fingerprint: str = "") -> int:
        """Removes the records of one model, or all; returns how many there were."""
        paths = self._paths(fingerprint)
        for path in paths:
            path.unlink(missing_ok=True)
        return len(paths)

    def all(self) -> list[Kept]:
        """Newest first, also those that hold no longer."""
        found = (_read(path) for path in self._folder.glob("*.json"))
        return sorted((kept for kept in found if kept), key=lambda kept: -kept.date)

    def _paths(self, fingerprint: str) -> list[Path]:
        return list(self._folder.glob(f"{fingerprint[:24]}-*.json" if fingerprint else "*.json"))

    def _write(self, kept: Kept) -> Path:
        """Whole or not at all. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(kept.fingerprint, kept.circumstances)
        part = path.with_suffix(".part")
        try:
            part.write_text(json.dumps(kept.to_json(), indent=1))
            os.replace(part, path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        return path

    def _path(self, fingerprint: str, circumstances: Circumstances) -> Path:
        key = json.dumps(asdict(circumstances), sort_keys=True).encode()
        digest = hashlib.blake2b(key, digest_size=6).hexdigest()
        return self._folder / f"{fingerprint[:24]}-{digest}.json"


def _read(path: Path) -> Kept | None:
    try:
        stored = json.loads(path.read_text())
        return Kept(
            model=str(stored["model"]),
            fingerprint=str(stored["fingerprint"]),
            quantisation=str(stored["quantisation"]),
            circumstances=Circumstances(**stored["circumstances"]),
            manner=Manner(**stored["manner"]),
            record=Record.from_json(stored["record"]),
            date=float(stored["date"]),
            edited=tuple(stored["edited"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, BadRecord) as error:
        log.warning("ignoring calibration %s: %s", path, error)
        return None


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
