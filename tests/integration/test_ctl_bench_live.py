"""`swiftlmctl bench` against a live daemon with a real engine on a tiny model."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from live_daemon import LiveDaemon, daemon, home
from tiny_models import make_model

ROOMS = [str(Path(__file__).parents[2] / room) for room in ("proto", "ctl")]


@pytest.fixture
async def live() -> AsyncIterator[LiveDaemon]:
    async with home() as place:
        make_model("llama", place.paths.models / "tiny", max_position_embeddings=16384)
        async with daemon(place, real=True, models__default="tiny") as found:
            yield found


async def bench(live: LiveDaemon, *words: str) -> tuple[int, list[dict], str]:
    """The exit code, the reports and what was said."""
    environ = {"PATH": "/usr/bin:/bin", "SWIFTLM_HOME": str(live.home.root)}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "swiftlmctl", "bench", *words, "--json", "--out", str(live.home.root / "out")),
        env={**environ, "PYTHONPATH": os.pathsep.join(ROOMS)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, errors = await process.communicate()
    code = process.returncode
    assert code is not None
    return code, json.loads(said or '[{"failed": []}]'), errors.decode()


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_cache_keeps_its_promises_and_contexts_are_measured(live: LiveDaemon) -> None:
    code, [report], errors = await bench(live, "cache")
    assert (code, report["failed"]) == (0, []), errors
    assert len(report["rows"]) == 9

    words = ("context", "--contexts", "300,20000", "--configurations", "vanilla,turbo")
    code, [report], errors = await bench(live, *words, "--runs", "1")
    assert code == 0, errors
    kinds = [(row[0], row[2][:7]) for row in report["rows"]]
    assert ("vanilla", "the mod") in kinds  # 20,000 tokens are more than it has
    assert any(name == "turbo" for name, _ in kinds)
    assert list((live.home.root / "out").glob("profiling_results_*.md"))


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_tool_loop_and_the_comparison_run_to_their_ends(live: LiveDaemon) -> None:
    code, [report], errors = await bench(live, "agents")
    assert (code, report["failed"]) == (0, []), errors
    assert [row[0] for row in report["rows"]] == ["1", "2", "3", "4", "5", "6"]

    other = f"http://127.0.0.1:{live.home.port}/v1"
    code, [report], errors = await bench(live, "compare", other, "--runs", "1")
    assert code == 0, errors
    assert {row[1] for row in report["rows"]} == {"first token", "generation"}


@pytest.mark.timeout(120)
async def test_a_server_that_is_not_there_is_said(live: LiveDaemon) -> None:
    code, _, errors = await bench(live, "compare", "http://127.0.0.1:9/v1", "--runs", "1")
    assert code == 1
    assert "does not answer" in errors
