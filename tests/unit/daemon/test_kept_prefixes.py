"""Kept prefixes: the limit counts at start and when it is lowered, for models that are gone too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from swiftlm_engine.brain.prefix_folders import PrefixFolders
from swiftlmd.store.kept_prefixes import KeptPrefixes


def keep(root: Path, model: str, size: int) -> Path:
    path = root / model / "print" / "a.kv"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(size))
    return path


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - a file system tells nobody
            await asyncio.sleep(0.01)


async def test_the_limit_counts_at_start_and_when_it_is_lowered(tmp_path: Path) -> None:
    limit, names = [1500], ["one", "two"]

    async def here() -> list[str]:
        return names

    gone = keep(tmp_path, "gone", 100)
    keep(tmp_path, "one", 1000)
    keep(tmp_path, "two", 1000)
    care = KeptPrefixes(PrefixFolders(tmp_path), here, lambda: limit[0])
    running = asyncio.create_task(care.run())
    await until(lambda: len(list(tmp_path.rglob("*.kv"))) == 1)
    assert not gone.exists()
    limit[0] = 500
    care.look_again()
    await until(lambda: not list(tmp_path.rglob("*.kv")))
    running.cancel()


async def test_nothing_is_deleted_where_no_model_is_seen_or_nothing_is_kept(tmp_path: Path) -> None:
    async def nothing() -> list[str]:
        return []

    kept = keep(tmp_path, "one", 1000)
    await KeptPrefixes(PrefixFolders(tmp_path), nothing, lambda: 0).look()
    assert kept.exists()
