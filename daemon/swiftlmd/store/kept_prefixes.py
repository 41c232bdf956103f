"""What is kept of prompts on disk, held to one limit for all models together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from swiftlm_engine.brain.prefix_folders import PrefixFolders

log = logging.getLogger(__name__)

LOOK_S = 600.0


class KeptPrefixes:
    """At start, when the configuration is read again, and now and then: engines write meanwhile.

    `names` are the models that are here; `max_bytes` is 0 where nothing more is kept, which
    deletes nothing: that is asked for by `swiftlmctl cache clear`.
    """

    def __init__(
        self,
        folders: PrefixFolders,
        names: Callable[[], Awaitable[Sequence[str]]],
        max_bytes: Callable[[], int],
    ) -> None:
        self._folders, self._names, self._max_bytes = folders, names, max_bytes
        self._asked = asyncio.Event()

    def look_again(self) -> None:
        self._asked.set()

    async def run(self) -> None:
        while True:
            self._asked.clear()
            await self.look()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), LOOK_S)

    async def look(self) -> None:
        names = await self._names()
        if names:  # an empty list is more likely a volume that is not there
            gone = await asyncio.to_thread(self._folders.delete_gone, names)
            for folder, nbytes in gone.items():
                log.info("kept prefixes of a model that is gone deleted: %s %d", folder, nbytes)
        if limit := self._max_bytes():
            await asyncio.to_thread(self._folders.trim, limit)
