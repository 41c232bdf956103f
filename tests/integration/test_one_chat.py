"""The files through which one warm chat runs are those of docs/architecture.md, in its order."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import live_daemon
import pytest
from tiny_models import make_model

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
TRACED = str(ROOT / "tests" / "support" / "traced")


def files_to_read() -> list[str]:
    """Of the table of the main path, first to last."""
    found = re.findall(r"^\| \d+ \| `(?:daemon|engine)/([\w/]+\.py)` \|", PAGE, re.MULTILINE)
    assert len(found) == 8
    return found


async def one_chat(place: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(live_daemon, "_ROOMS", [TRACED, *live_daemon._ROOMS])
    async with live_daemon.home() as home:
        home.environ["SWIFTLM_TRACE_FILES"] = str(place)
        make_model("llama", home.paths.models / "tiny")
        async with live_daemon.daemon(home, real=True) as live:
            assert (await live.chat(max_tokens=4))[0] == 200
            (place / "on").touch()
            await asyncio.sleep(0.2)  # two processes look for it every 20 ms
            assert (await live.chat(max_tokens=4))[0] == 200
            os.unlink(place / "on")
    return files_that_ran(place)


def files_that_ran(place: Path) -> list[str]:
    """In the order of a first call, from when the chat begins: housekeeping runs before it, too.
    The processes of a machine share one clock."""
    lines = [line.split() for file in place.iterdir() for line in file.read_text().splitlines()]
    called = [name for _, name in sorted(lines, key=lambda line: float(line[0]))]
    return list(dict.fromkeys(called[called.index(files_to_read()[0]) :]))


async def test_a_warm_chat_runs_through_the_files_of_the_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = await one_chat(tmp_path, monkeypatch)
    to_read = files_to_read()
    assert set(to_read) <= set(ran)
    # Beyond the socket the engine's statistics, asked for every second, may come in between.
    assert [name for name in ran if name in to_read[:4]] == to_read[:4]
    most, folders = map(int, re.findall(r"at most (\d+) of our files in (\d+) folders", PAGE)[0])
    assert len(set(ran)) <= most, sorted(set(ran))
    assert len({name.rpartition("/")[0] for name in ran}) <= folders
