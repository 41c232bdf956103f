"""This host's part of a model, fetched from the hub: the files of its share, of others the headers.

FOLDER/outlines/...             headers of all weight files
FOLDER/models--ORG--NAME/...    what was fetched, in the hub's own layout, resumable and checked
FOLDER/shares/FINGERPRINT/      what a rank loads: links into the one, headers of the other
"""

from __future__ import annotations

import dataclasses
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from swiftlm_engine.brain.facts import ModelFilesError, read_checkpoint, read_model
from swiftlm_engine.brain.leftovers import remove_leftovers, temporary_name
from swiftlm_engine.brain.plan.rank_files import files_of, note_hollow, write_hollow
from swiftlm_engine.brain.plan.share import Share
from swiftlmd.store import discovery, hub, names
from swiftlmd.store.errors import PullFailed
from swiftlmd.store.jobs import Report
from swiftlmd.store.options import StoreOptions
from swiftlmd.store.swap import put_in_place


@dataclass(frozen=True, slots=True)
class Wish:
    """A share of a model of the hub, told from others by its fingerprint."""

    repo: str
    commit: str
    fingerprint: str
    share: Share


class Shares:
    """Below one folder of caches; whatever is in it may be deleted."""

    def __init__(self, folder: Path, options: StoreOptions) -> None:
        self._folder = folder
        self._options = dataclasses.replace(options, hub_cache=folder)

    def folders(self) -> Iterator[Path]:
        """Those that a rank can load."""
        for folder in (self._folder / "shares").glob("*"):
            if not folder.name.startswith("."):
                yield folder

    async def fetch(self, wish: Wish, report: Report) -> None:
        """Raises ServiceError. Cancelling it stops the transfer; what arrived stays."""
        name = names.hub_name(wish.repo, wish.commit)
        cache = self._folder / "outlines"
        outline = await discovery.outline(name.repo, name.revision, cache, self._options)
        try:
            if read_model(outline.path).fingerprint != wish.fingerprint:
                message = f"'{wish.repo}' at {wish.commit} is not the model that the leader has"
                raise PullFailed(message, code="other_model")
            wanted = files_of(outline.path, wish.share)
        except ModelFilesError as error:
            raise PullFailed(f"'{wish.repo}' cannot be understood: {error}") from error
        request = hub.request_for(name.repo, name.revision, (), self._options, recheck=False)
        request = dataclasses.replace(request, weights=tuple(sorted(wanted)))
        fetched = await hub.fetch(request, self._options, report)
        self._assemble(outline.path, fetched.path, wish.fingerprint)

    def _assemble(self, outline: Path, fetched: Path, fingerprint: str) -> None:
        """Appears whole; what an earlier share brought counts, too."""
        place = self._folder / "shares" / fingerprint
        place.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(place.parent)  # of fetches that were killed
        draft = place.with_name(temporary_name(place.name, f"new{secrets.token_hex(4)}"))
        draft.mkdir()
        try:
            for file in fetched.iterdir():
                (draft / file.name).symlink_to(file.resolve())
            weights = {tensor.file.name for tensor in read_checkpoint(outline)}
            hollow = {name for name in weights if not (draft / name).exists()}
            for name in hollow:
                write_hollow(draft / name, outline / name)
            note_hollow(draft, hollow)
            put_in_place(draft, place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
