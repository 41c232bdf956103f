"""Whether there is room left where the daemon writes: a full disk costs logs, records and caches
without failing a request, so it has to be said."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from swiftlmd.clock import Clock

_PERIOD_S, _ASKED_S = 60.0, 5.0  # while nobody asks, and after a question
_LITTLE_BYTES = 100 * 10**6


class DiskWatch:
    """`run` looks once a minute, and soon after somebody asked for warnings; in a thread: a
    sleeping volume holds up nobody."""

    def __init__(
        self, folders: Sequence[Path], free_bytes: Callable[[Path], int] | None = None
    ) -> None:
        self._folders = tuple(dict.fromkeys(folders))
        self._free_bytes = free_bytes or _free_bytes
        self._short: dict[Path, int] = {}  # folders with little room: bytes free
        self._asked = asyncio.Event()

    async def run(self, clock: Clock) -> None:
        while True:
            self._asked.clear()
            await self.look()
            await clock.sleep(_ASKED_S)
            await clock.wait(self._asked, _PERIOD_S - _ASKED_S)

    async def look(self) -> None:
        self._short = await asyncio.to_thread(self._found)

    def warnings(self) -> list[str]:
        """As of the last look; the next one comes soon."""
        self._asked.set()
        return [
            f"the disk of {folder} is full ({free / 1e6:.0f} MB free): log lines, records and kept "
            "prompts are lost; make room on it"
            for folder, free in self._short.items()
        ]

    def _found(self) -> dict[Path, int]:
        short: dict[Path, int] = {}
        disks: set[int] = set()
        for folder in self._folders:
            try:
                existing = next(p for p in (folder, *folder.parents) if p.exists())
                disk, free = existing.stat().st_dev, self._free_bytes(existing)
            except OSError:
                continue  # what cannot be read at all is named by others
            if free < _LITTLE_BYTES and disk not in disks:
                short[folder] = free
                disks.add(disk)
        return short


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free
