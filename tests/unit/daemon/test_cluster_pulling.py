"""The transfers to other hosts, and who stops them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swiftlm_engine.brain.plan.share import Share, Split
from swiftlmd.cluster import pulling
from swiftlmd.hosts.fetching import Wish
from swiftlmd.hosts.registry import Host
from swiftlmd.store.types import PullProgress, Stage


async def test_who_leaves_twice_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = threading.Event()  # the host says nothing until the test ends

    def progress(errand: pulling.Errand, secret_file: Path) -> Iterator[PullProgress]:
        silent.wait(5)
        yield PullProgress(Stage.QUEUED)

    monkeypatch.setattr(pulling, "_progress", progress)
    wish = Wish("org/a", "c", "f", Share(Split.PIPELINE, range(1)))

    async def follow() -> None:
        async for _ in pulling.run([pulling.Errand(Host("b", 1), wish)], Path("secret")):
            pass

    task = asyncio.create_task(follow())
    try:
        await asyncio.sleep(0.05)
        began = time.monotonic()
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0.01)
        await asyncio.wait({task}, timeout=1)
        assert task.cancelled()
        assert time.monotonic() - began < 2
    finally:
        silent.set()
