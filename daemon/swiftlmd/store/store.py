"""The models on this machine: listed, found, fetched, removed. The daemon's only door to them."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import shutil
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from swiftlm_engine.brain.leftovers import remove_leftovers, temporary_name
from swiftlm_proto.paths import Paths
from swiftlmd.faults import ModelNotFound, ServiceError
from swiftlmd.store import builtin, cache_dirs, discovery, hub_cache, names, usage
from swiftlmd.store.discovery import Offer, Outline
from swiftlmd.store.errors import BadModelName, NotRemovable, disk_failed
from swiftlmd.store.jobs import Goal, Jobs, Verb, folder_target, hub_target
from swiftlmd.store.local_models import LocalModels
from swiftlmd.store.options import StoreOptions
from swiftlmd.store.pulls import Pulls, gguf_name, makes_folder
from swiftlmd.store.reader import STILL_READING
from swiftlmd.store.records import Records, Wanted
from swiftlmd.store.types import ModelSource, PullProgress, RemovedModel, Stage, StoredModel
from swiftlmd.store.usage import Usage

log = logging.getLogger(__name__)

_LOOKS, _LOOK_S = 60, 0.5  # for a large model on a slow disk


@dataclass(frozen=True, slots=True)
class Download:
    """A pull under way, as `status` shows it."""

    name: str
    progress: PullProgress


class ModelStore:
    """One per daemon, on its event loop. `close` stops every pull; a new store resumes them."""

    def __init__(self, paths: Paths, options: StoreOptions | None = None) -> None:
        self._paths = paths
        self._records = Records(paths.state / "store")
        self._shelf = LocalModels(paths.models, options or default_options(), self._records)
        self._pulls = Pulls(paths, self._records, self._shelf)
        self._jobs = Jobs()
        self._absent: tuple[Path, ...] = ()
        self.warnings_asked = asyncio.Event()  # cleared by who looks
        self._resumed: set[asyncio.Task[None]] = set()

    def reach(self, options: StoreOptions) -> None:
        """How connections are made from now on, or that none are; places stay as they were.

        A pull under way ends as it began.
        """
        old = self._shelf.options
        self._shelf.options = dataclasses.replace(
            options, hub_cache=old.hub_cache, folders=old.folders
        )

    async def list(self) -> list[StoredModel]:
        """Everything that looks like a model, broken ones with the reason, by name."""
        return await asyncio.to_thread(self._shelf.models)

    async def look_for_folders(self) -> None:
        """Finds out for `warnings`; may take as long as a sleeping disk."""
        self._absent = await asyncio.to_thread(self._shelf.absent)

    def warnings(self) -> tuple[str, ...]:
        """As of the last look for folders."""
        self.warnings_asked.set()
        return tuple(
            f"the folder {path} (models.folders) is not there, nor are its models: "
            f"connect its disk, or change it with `swiftlmctl config edit`"
            for path in self._absent
        )

    async def find(self, name: str) -> StoredModel | None:
        """The model of that name, ready or not; a folder that takes long to read is waited for."""
        for _ in range(_LOOKS):
            model = next((model for model in await self.list() if model.name == name), None)
            if model is None or not model.reason.endswith(STILL_READING):
                return model
            await asyncio.sleep(_LOOK_S)
        return model

    async def name_of(self, model: str) -> str:
        """The name of the model whose folder a path is; a name as it is. Raises BadModelName."""
        if not names.is_path(model):
            return model
        listed = await self.list()

        def found() -> str:
            meant = Path(model).expanduser().resolve()
            return next((x.name for x in listed if x.path.resolve() == meant), "")

        if name := await asyncio.to_thread(found):
            return name
        raise BadModelName(
            f"{model} is not the folder of a listed model; `swiftlmctl models add {model}` lists it"
        )

    def downloads(self) -> tuple[Download, ...]:
        """Pulls under way, each with its newest report."""
        return tuple(Download(job.name, job.latest) for job in self._jobs.running())

    async def pull(
        self, name: str, revision: str = "", include: Sequence[str] = (), save_as: str = ""
    ) -> AsyncGenerator[PullProgress, None]:
        """Fetch a model and report until it is there; the last report names it.

        Raises ServiceError. Joins the same pull if it runs already. The transfer stops when nobody
        follows it any more; what has arrived stays for the next one. `save_as` names what becomes
        a folder of its own (a GGUF file, a folder of the user's).
        """
        if names.is_path(name):
            added = await self.add(Path(name), save_as)
            yield PullProgress(Stage.DONE, detail=f"listed as {added.name}", model=added.name)
            return
        wanted = await asyncio.to_thread(self._wanted, name, revision, tuple(include), save_as)
        if save_as and not makes_folder(wanted):
            raise BadModelName(f"'{name}' keeps its own name; --name is for GGUF files and folders")
        goal = Goal(wanted, Verb.PULL, _target(wanted))
        claim = partial(self._jobs.claim, goal)
        reports = self._jobs.follow(goal, partial(self._pulls.fetch, wanted, claim))
        async with aclosing(reports):
            async for report in reports:
                yield report

    async def cancel(self, name: str) -> bool:
        """Stop what is under way for a model, for all who follow it; False when nothing is.

        Takes the names of `downloads`, those that conversions will have, and all that `pull` takes.
        """
        if await self._jobs.cancel(name):
            return True
        try:
            wanted = await asyncio.to_thread(self._wanted, name, "", (), "")
        except BadModelName:
            return False
        return await self._jobs.cancel(wanted.name)

    async def repair(self, name: str) -> AsyncGenerator[PullProgress, None]:
        """Check every byte of a model against its hashes and fetch what is wrong or missing."""
        model = await self._must_find(name)
        wanted = await asyncio.to_thread(self._pulls.repair_of, model)
        goal = Goal(wanted, Verb.REPAIR, _target(wanted))
        reports = self._jobs.follow(goal, partial(self._pulls.repair, model, wanted))
        async with aclosing(reports):
            async for report in reports:
                yield report

    async def import_gguf(
        self, file: Path, name: str = "", dtype: str = ""
    ) -> AsyncGenerator[PullProgress, None]:
        """Make a model of a GGUF file; the last report states what rounding cost."""
        chosen = name or gguf_name(file)
        goal = Goal(Wanted(chosen, dtype, (str(file),)), Verb.IMPORT, folder_target(chosen))
        work = partial(self._pulls.import_gguf, file, chosen, dtype)
        reports = self._jobs.follow(goal, work, waits=False)
        async with aclosing(reports):
            async for report in reports:
                yield report

    async def quantise(
        self, name: str, out_name: str = "", bits: int = 4, group_size: int = 64
    ) -> AsyncGenerator[PullProgress, None]:
        """Make a smaller copy of a model that is not quantized."""
        model = await self._must_find(name)
        chosen = out_name or f"{name.rpartition('/')[2]}-{bits}bit"
        wanted = Wanted(chosen, f"{bits}/{group_size}", (name,))
        goal = Goal(wanted, Verb.CONVERT, folder_target(chosen))
        work = partial(self._pulls.quantise, model, chosen, bits, group_size)
        reports = self._jobs.follow(goal, work, waits=False)
        async with aclosing(reports):
            async for report in reports:
                yield report

    async def pack(self, name: str, *, remove: bool = False) -> AsyncGenerator[PullProgress, None]:
        """Write the experts of a model as records beside it, or remove them again."""
        model = await self._must_find(name)
        wanted = Wanted(name, "", ("remove" if remove else "pack",))
        goal = Goal(wanted, Verb.PACK, _target_of(model))
        reports = self._jobs.follow(goal, partial(self._pulls.pack, model, remove))
        async with aclosing(reports):
            async for report in reports:
                yield report

    async def search(self, text: str, limit: int = 20) -> Sequence[Offer]:
        """What the hub has in MLX's format, the most fetched first."""
        return await discovery.search(text, limit, self._options)

    async def outline(self, name: str, revision: str = "") -> Outline:
        """Configuration and headers of a hub model that need not be here: enough for its plan."""
        cache = self._paths.cache / "outlines"
        return await discovery.outline(name, revision, cache, self._options)

    def known_outline(self, repo: str) -> Outline | None:
        """The same, only if it is known already."""
        return discovery.cached_outline(repo, self._paths.cache / "outlines")

    async def usage(self) -> Usage:
        """What all of it takes of the disk."""
        models = await self.list()
        return await asyncio.to_thread(usage.measure, self._paths, self._options, models)

    async def add(self, folder: Path, name: str = "") -> StoredModel:
        """List a folder of the user's where it is; nothing is copied."""
        return await asyncio.to_thread(self._pulls.add, folder, name)

    async def remove(self, name: str, dry_run: bool = False) -> RemovedModel:
        """Delete what the store owns of a model; a user's folder is only taken off the list.

        `dry_run` says what would go, and changes nothing. The caller has unloaded the model.
        """
        model = await self._must_find(name)
        if dry_run:
            return await self._removal(model, dry_run=True)
        async with self._jobs.alone(_target_of(model)):  # ends what writes it
            return await self._removal(model, dry_run=False)

    def resume(self) -> None:
        """Go on with the pulls that the last daemon left unfinished; clear half-made folders."""
        self._in_background(asyncio.to_thread(remove_leftovers, self._paths.models), "leftovers")
        for wanted in self._records.pulls.all():
            self._in_background(self._go_on(wanted), f"resume {wanted.name}")

    def _in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._resumed.add(task)
        task.add_done_callback(self._resumed.discard)

    async def close(self) -> None:
        """Ends every pull; those that were not complete are resumed by the next daemon."""
        self._pulls.closing = True
        await self._jobs.close()
        for task in tuple(self._resumed):
            task.cancel()
        await asyncio.gather(*self._resumed, return_exceptions=True)

    async def _go_on(self, wanted: Wanted) -> None:
        try:
            steps = self.pull(wanted.name, wanted.revision, wanted.include, wanted.save_as)
            async for _ in steps:
                pass
        except ServiceError as error:
            log.warning("pull of %s could not be resumed: %s", wanted.name, error.message)

    @property
    def _options(self) -> StoreOptions:
        return self._shelf.options

    async def _must_find(self, name: str) -> StoredModel:
        if (model := await self.find(name)) is not None:
            return model
        raise ModelNotFound(name, [model.name for model in await self.list()])

    def _wanted(self, name: str, revision: str, include: tuple[str, ...], save_as: str) -> Wanted:
        """The pull under the name that its model will have; raises BadModelName."""
        listed = [model.name for model in self._shelf.models()]
        if name in builtin.BUILT_INS or name in listed:
            return Wanted(name, revision, include, save_as)
        found = names.hub_name(name, revision)
        # The hub's names do not differ by case alone: one that is here is meant.
        here = [x for x in listed if "/" in x and x.casefold() == found.repo.casefold()]
        repo = here[0] if found.repo not in listed and len(here) == 1 else found.repo
        return Wanted(repo, found.revision, include, save_as)

    async def _removal(self, model: StoredModel, dry_run: bool) -> RemovedModel:
        try:
            return await asyncio.to_thread(self._remove, model, dry_run)
        except OSError as error:
            raise disk_failed(f"'{model.name}' could not be removed", error) from error

    def _remove(self, model: StoredModel, dry_run: bool) -> RemovedModel:
        if model.source is ModelSource.LOCAL:
            return self._take_off(model, dry_run)
        if model.source is ModelSource.HUB:
            cached = hub_cache.repo(self._options.hub_cache, model.name)
            snapshot = model.path if model.path.parent.name == "snapshots" else None
            removal = hub_cache.plan_removal(cached, snapshot)
            if not dry_run:
                hub_cache.carry_out(removal, self._options.hub_cache)
                self._records.pinned.drop(model.name)
                for wanted in self._records.pulls.all():
                    if wanted.name == model.name and not makes_folder(wanted):
                        self._records.pulls.forget(wanted)
            return RemovedModel(removal.freed_bytes, removal.paths)
        if model.path.is_symlink() or model.path.parent != self._paths.models:
            raise NotRemovable(f"{model.path} is not a folder of the store; remove it yourself")
        if not dry_run:
            # Renamed first: half of a model must not be listed as one if we are killed meanwhile.
            gone = model.path.with_name(temporary_name(model.path.name, "gone"))
            model.path.rename(gone)
            shutil.rmtree(gone)
        return RemovedModel(model.size_bytes, (model.path,))

    def _take_off(self, model: StoredModel, dry_run: bool) -> RemovedModel:
        if self._records.folders.get(model.name) is None:
            raise NotRemovable(
                f"'{model.name}' is your own folder {model.path}; remove it yourself"
            )
        if not dry_run:
            self._records.folders.drop(model.name)
        return RemovedModel(0, ())


def _target(wanted: Wanted) -> str:
    """What a pull writes; of a GGUF file's model the name is known only when the hub lists it."""
    if wanted.name in builtin.BUILT_INS:
        return folder_target(wanted.name)
    return "" if makes_folder(wanted) else hub_target(wanted.name)


def _target_of(model: StoredModel) -> str:
    if model.source is ModelSource.LOCAL:
        return f"local/{model.path}"
    return (
        hub_target(model.name)
        if model.source is ModelSource.HUB
        else folder_target(model.path.name)
    )


def default_options() -> StoreOptions:
    """By the environment alone."""
    home = Path.home()
    environ = dict(os.environ)
    return StoreOptions(environ=environ, home=home, hub_cache=cache_dirs.hub_cache(environ, home))
