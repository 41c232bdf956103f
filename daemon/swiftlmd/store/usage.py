"""What models and the things around them take of the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from swiftlm_proto.paths import Paths
from swiftlmd.store import hub_cache
from swiftlmd.store.options import StoreOptions
from swiftlmd.store.types import ModelSource, StoredModel


@dataclass(frozen=True, slots=True)
class Taken:
    """One row; `removable` by `models rm`, the rest by what made it."""

    name: str
    path: Path
    disk_bytes: int
    removable: bool


@dataclass(frozen=True, slots=True)
class Usage:
    rows: tuple[Taken, ...]  # the largest first
    free_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(row.disk_bytes for row in self.rows)


def measure(paths: Paths, options: StoreOptions, models: list[StoredModel]) -> Usage:
    """Walks every folder; blocks on the disk, each file once."""
    rows = [*_models(models), *_hub(options.hub_cache, models), *_own_caches(paths)]
    rows = [row for row in rows if row.disk_bytes]
    existing = next(p for p in (paths.app, *paths.app.parents) if p.exists())
    ordered = tuple(sorted(rows, key=lambda row: row.disk_bytes, reverse=True))
    return Usage(ordered, shutil.disk_usage(existing).free)


def disk_bytes(folder: Path) -> int:
    """Allocated blocks below a folder, links not followed, hard links counted once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                stat = os.lstat(os.path.join(root, name))
            except OSError:
                continue
            if (stat.st_dev, stat.st_ino) not in seen:
                seen.add((stat.st_dev, stat.st_ino))
                total += stat.st_blocks * 512
    return total


def _models(models: list[StoredModel]) -> Iterator[Taken]:
    for model in models:
        if model.source is not ModelSource.HUB:
            removable = model.source is not ModelSource.LOCAL
            yield Taken(model.name, model.path, disk_bytes(model.path), removable)


def _hub(cache: Path, models: list[StoredModel]) -> Iterator[Taken]:
    """Every repository of the shared cache: those of other programs fill the disk too."""
    listed = {model.name for model in models if model.source is ModelSource.HUB}
    for repo in hub_cache.repos(cache):
        yield Taken(repo.name, repo.root, disk_bytes(repo.root), repo.name in listed)


def _own_caches(paths: Paths) -> Iterator[Taken]:
    for name in ("wheels", "gguf", "outlines", "prefix", "shares"):
        folder = paths.cache / name
        yield Taken(f"cache: {name}", folder, disk_bytes(folder), removable=False)
