"""How often an idle service wakes the machine, counted by the kernel over half a minute.

A wake-up is a voluntary context switch of the event loop's thread. Threads that it hands work to
run in the same burst; all threads together are held to three times as much.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from live_daemon import daemon, home
from tiny_models import make_model

_COUNTED_S = 30.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]


def switches(pid: int) -> dict[str, int]:
    """Voluntary switches so far, by thread."""
    counted = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            lines = (task / "status").read_text().splitlines()
        except OSError:
            continue  # it has ended
        counted[task.name] = next(
            int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches")
        )
    return counted


async def woken(pid: int) -> tuple[int, int]:
    """Switches of the first thread, and of all, while nobody asks for anything."""
    before = switches(pid)
    await asyncio.sleep(_COUNTED_S)
    after = switches(pid)
    each = {task: count - before.get(task, 0) for task, count in after.items()}
    return each[str(pid)], sum(each.values())


async def test_without_a_model_the_daemon_wakes_at_most_every_five_seconds() -> None:
    async with home("tiny") as place, daemon(place) as live:
        await asyncio.sleep(15)  # what belongs to its start
        loop, everything = await woken(live.pid)
        assert loop <= _COUNTED_S / 5 + 6  # one burst of once a minute may lie in it
        assert everything <= 3 * _COUNTED_S / 5


async def test_with_an_idle_model_daemon_and_engine_wake_at_most_once_a_second() -> None:
    async with home() as place:
        make_model("llama", place.paths.models / "tiny")
        async with daemon(place, real=True, calibration__auto="false") as live:
            status, _ = await live.chat(max_tokens=4)
            assert status == 200
            engine = await live.engine_pid()
            await asyncio.sleep(20)  # what a pause is used for
            (loop, everything), (first, engines) = await asyncio.gather(
                woken(live.pid), woken(engine)
            )
            assert loop <= _COUNTED_S
            assert everything <= 3 * _COUNTED_S
            assert first + engines <= _COUNTED_S
