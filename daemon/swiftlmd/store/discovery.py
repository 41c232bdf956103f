"""What the hub offers and what a model there would cost here, before it is fetched."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from swiftlmd.store import child, hub, names, supported
from swiftlmd.store.errors import PullFailed, disk_failed
from swiftlmd.store.options import StoreOptions
from swiftlmd.store.swap import put_in_place

_FRESH_S = 7 * 24 * 3600.0  # a repository's headers hardly ever change
_ABOUT = "about.json"


@dataclass(frozen=True, slots=True)
class Offer:
    """A model of the hub as a search finds it."""

    repo: str
    downloads: int
    gated: bool
    licence: str
    model_type: str
    quantization: str
    size_bytes: int  # 0 = the hub does not say
    vision: bool

    @property
    def runs_here(self) -> bool:
        return not self.model_type or supported.is_known(self.model_type)


@dataclass(frozen=True, slots=True)
class Outline:
    """A model's configuration and headers on disk: enough for an exact plan."""

    path: Path
    commit: str
    licence: str
    gated: bool
    size_bytes: int  # what a pull brings


async def search(text: str, limit: int, options: StoreOptions) -> list[Offer]:
    """Models in MLX's format, the most fetched first. Raises PullFailed."""
    found: list[Offer] = []

    def take(line: child.Report) -> None:
        if line.pop("stage") == "found":
            found.append(Offer(**line))

    await hub.ask("search", {"text": text, "limit": limit}, options, take)
    return found


async def outline(name: str, revision: str, cache: Path, options: StoreOptions) -> Outline:
    """From the cache if that is fresh enough or we are offline, else from the hub."""
    wanted = names.hub_name(name, revision)
    stated = wanted.revision or names.DEFAULT_REVISION
    place = cache / quote(f"{wanted.repo}@{stated}", safe="@")
    known = await asyncio.to_thread(_read, place)
    if known is not None and (options.hub_offline or _is_fresh(place)):
        return known
    return await _fetch(wanted.repo, stated, place, options)


def cached_outline(repo: str, cache: Path) -> Outline | None:
    """What is known of a repository's main revision without asking anybody."""
    return _read(cache / quote(f"{repo}@{names.DEFAULT_REVISION}", safe="@"))


async def _fetch(repo: str, revision: str, place: Path, options: StoreOptions) -> Outline:
    await asyncio.to_thread(place.parent.mkdir, parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=place.parent, prefix=".outline-"))
    try:
        about: child.Report = {}
        request = {"repo": repo, "revision": revision, "folder": str(draft)}
        await hub.ask("outline", request, options, about.update)
        if about.pop("stage", "") != "done":
            raise PullFailed(f"'{repo}' could not be described")
        await asyncio.to_thread(_keep, draft, place, about)
    except OSError as error:
        raise disk_failed(f"the outline of '{repo}' could not be kept", error) from error
    finally:
        await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)
    return Outline(path=place, **about)


def _keep(draft: Path, place: Path, about: child.Report) -> None:
    (draft / _ABOUT).write_text(json.dumps(about))
    put_in_place(draft, place)


def _read(place: Path) -> Outline | None:
    try:
        about = json.loads((place / _ABOUT).read_bytes())
        return Outline(path=place, **about)
    except (OSError, ValueError, TypeError):
        return None


def _is_fresh(place: Path) -> bool:
    return time.time() - (place / _ABOUT).stat().st_mtime < _FRESH_S
