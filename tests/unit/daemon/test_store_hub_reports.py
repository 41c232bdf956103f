"""What the fetching process says, as the daemon reads it."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from swiftlmd.store import child
from swiftlmd.store.fetch.cache import RepoCache
from swiftlmd.store.fetch.choice import RemoteFile
from swiftlmd.store.hub import Listed, _HubReading
from swiftlmd.store.types import PullProgress


def line(stage: str, **fields: Any) -> dict[str, Any]:
    plain = {"done_bytes": 5, "total_bytes": 9, "checked_bytes": 0, "detail": ""}
    return {"stage": stage, **plain, **fields}


def test_reading_again_counts_as_progress() -> None:
    grown: list[None] = []
    seen: list[PullProgress] = []
    reading = _HubReading("org/x", seen.append, lambda listed: None)
    reading.on_growth = lambda: grown.append(None)
    reading.take(line("download"))
    reading.take(line("download"))
    assert len(grown) == 1
    for checked in (10, 10, 20):
        reading.take(line("download", checked_bytes=checked))
    assert len(grown) == 3


def test_a_check_of_what_is_here_counts_its_bytes(tmp_path: Path) -> None:
    cache = RepoCache(tmp_path, "org/x")
    cache.prepare()
    file = RemoteFile("model.safetensors", 3000, "0" * 64, large=True)
    cache.blob(file).write_bytes(b"x" * 3000)
    cache.discard_if_wrong(file)
    assert cache.checked_bytes == 3000
    assert not cache.blob(file).exists()


def test_a_long_list_of_files_comes_in_portions() -> None:
    listed: list[Listed] = []
    reading = _HubReading("org/x", lambda report: None, listed.append)
    for first, more in ((0, True), (1, True), (2, False)):
        files = [{"name": f"f{first}", "size": 1, "digest": "d"}]
        reading.take({"stage": "files", "commit": "c", "licence": "", "total_bytes": 3,
                      "files": files, "more": more})  # fmt: skip
    assert listed == [Listed("c", ("f0", "f1", "f2"), ("d", "d", "d"))]


async def run(code: str) -> list[child.Report]:
    found: list[child.Report] = []
    async with asyncio.timeout(30):
        await child.run("-c", code, on_report=found.append, environ=dict(os.environ))
    return found


async def test_a_line_of_any_length_ends_in_a_fault_and_not_in_a_crash() -> None:
    with pytest.raises(child.ChildFailed, match="a line of more than"):
        await run("print('\"' + 'x' * 10_000_000 + '\"')")
    with pytest.raises(child.ChildFailed) as caught:
        await run("import sys; sys.exit('x' * 10_000_000 + ' the end')")
    assert caught.value.complaint.endswith("the end")
