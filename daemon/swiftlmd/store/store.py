"""The models on this machine: listed, found, fetched, removed. The daemon's only door to them."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from swiftlm_proto.paths import Paths
from swiftlmd.faults import ModelNotFound, ServiceError
from swiftlmd.store import builtin, cache_dirs, discovery, hub_cache, names, usage
from swiftlmd.store.discovery import Offer, Outline
from swiftlmd.store.errors import BadModelName, NotRemovable, disk_failed
from swiftlmd.store.jobs import Jobs
from swiftlmd.store.local_models import LocalModels
from swiftlmd.store.options import StoreOptions
from swiftlmd.store.pulls import Pulls
from swiftlmd.store.records import Records, Wanted
from swiftlmd.store.types import ModelSource, PullProgress, RemovedModel, Stage, StoredModel
from swiftlmd.store.usage import Usage

log = logging.getLogger(__name__)


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

    async def find(self, name: str) -> StoredModel | None:
        """The model of that name, ready or not."""
        return next((model for model in await self.list() if model.name == name), None)

    def downloads(self) -> tuple[Download, ...]:
        """Pulls under way, each with its newest report."""
        return tuple(Download(job.name, job.latest) for job in self._jobs.running())

    async def pull(
        self, name: str, revision: str = "", include: Sequence[str] = ()
    ) -> AsyncGenerator[PullProgress, None]:
        """Fetch a model and report until it is there; the last report names it.

        Raises ServiceError. Joins the same pull if it runs already. The transfer stops when nobody
        follows it any more; what has arrived stays for the next one.
        """
        if names.is_path(name):
            added = await self.add(Path(name))
            yield PullProgress(Stage.DONE, detail=f"listed as {added.name}", model=added.name)
            return
        wanted = await asyncio.to_thread(self._wanted, name, revision, tuple(include))
        reports = self._jobs.follow(wanted, partial(self._pulls.fetch, wanted))
        async with aclosing(reports):
            async for report in reports:
                yield report

    async def cancel(self, name: str) -> bool:
        """Stop a pull for all who follow it; False when there is none."""
        try:
            wanted = await asyncio.to_thread(self._wanted, name, "", ())
        except BadModelName:
            return False
        return await self._jobs.cancel(wanted.name)

    async def repair(self, name: str) -> AsyncGenerator[PullProgress, None]:
        """Check every byte of a model against its hashes and fetch what is wrong or missing."""
        model = await self._must_find(name)
        wanted = self._pulls.repair_of(model)
        reports = self._jobs.follow(wanted, partial(self._pulls.repair, model, wanted))
        async with aclosing(reports):
            async for report in reports:
                yield report

    async def import_gguf(
        self, file: Path, name: str = "", dtype: str = ""
    ) -> AsyncGenerator[PullProgress, None]:
        """Make a model of a GGUF file; the last report states what rounding cost."""
        chosen = name or file.stem
        wanted = Wanted(chosen, "", (str(file),))
        work = partial(self._pulls.import_gguf, file, chosen, dtype)
        reports = self._jobs.follow(wanted, work)
        async with aclosing(reports):
            async for report in reports:
                yield report

    async def quantise(
        self, name: str, out_name: str = "", bits: int = 4, group_size: int = 64
    ) -> AsyncGenerator[PullProgress, None]:
        """Make a smaller copy of a model that is not quantised."""
        model = await self._must_find(name)
        chosen = out_name or f"{name.rpartition('/')[2]}-{bits}bit"
        wanted = Wanted(chosen, "", (name, f"{bits}/{group_size}"))
        work = partial(self._pulls.quantise, model, chosen, bits, group_size)
        reports = self._jobs.follow(wanted, work)
        async with aclosing(reports):
            async for report in reports:
                yield report

    async def pack(self, name: str, *, remove: bool = False) -> AsyncGenerator[PullProgress, None]:
        """Write the experts of a model as records beside it, or remove them again."""
        model = await self._must_find(name)
        wanted = Wanted(name, "", ("remove" if remove else "pack",))
        reports = self._jobs.follow(wanted, partial(self._pulls.pack, model, remove))
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

        `dry_run` says what would go. The caller has unloaded the model.
        """
        model = await self._must_find(name)
        await self._jobs.cancel(name)
        try:
            return await asyncio.to_thread(self._remove, model, dry_run)
        except OSError as error:
            raise disk_failed(f"'{name}' could not be removed", error) from error

    def resume(self) -> None:
        """Go on with the pulls that the last daemon left unfinished."""
        for wanted in self._records.pulls.all():
            task = asyncio.create_task(self._go_on(wanted), name=f"resume {wanted.name}")
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
            async for _ in self.pull(wanted.name, wanted.revision, wanted.include):
                pass
        except ServiceError as error:
            log.warning("pull of %s could not be resumed: %s", wanted.name, error.message)

    @property
    def _options(self) -> StoreOptions:
        return self._shelf.options

    async def _must_find(self, name: str) -> StoredModel:
        models = await self.list()
        for model in models:
            if model.name == name:
                return model
        raise ModelNotFound(name, [model.name for model in models])

    def _wanted(self, name: str, revision: str, include: tuple[str, ...]) -> Wanted:
        """The pull under the name that its model will have; raises BadModelName."""
        if name in builtin.BUILT_INS or any(m.name == name for m in self._shelf.models()):
            return Wanted(name, revision, include)
        found = names.hub_name(name, revision)
        return Wanted(found.repo, found.revision, include)

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
                self._records.pulls.drop(model.name)
            return RemovedModel(removal.freed_bytes, removal.paths)
        if model.path.is_symlink() or model.path.parent != self._paths.models:
            raise NotRemovable(f"{model.path} is not a folder of the store; remove it yourself")
        if not dry_run:
            shutil.rmtree(model.path)
        return RemovedModel(model.size_bytes, (model.path,))

    def _take_off(self, model: StoredModel, dry_run: bool) -> RemovedModel:
        if self._records.folders.get(model.name) is None:
            raise NotRemovable(
                f"'{model.name}' is your own folder {model.path}; remove it yourself"
            )
        if not dry_run:
            self._records.folders.drop(model.name)
        return RemovedModel(0, ())


def default_options() -> StoreOptions:
    """By the environment alone."""
    home = Path.home()
    environ = dict(os.environ)
    return StoreOptions(environ=environ, home=home, hub_cache=cache_dirs.hub_cache(environ, home))
