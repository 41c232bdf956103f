"""The whole service with a model over two ranks: what clients see when a rank is lost."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator

import psutil
import pytest
from live_daemon import LiveDaemon, daemon, eventually, home
from tiny_models import make_model

GROUP = {
    "cluster_hosts": "localhost,localhost",
    "cluster_lost_after": 2,
    "engine_cluster": "true",
    "engine_stall": 5,
}


@pytest.fixture
async def live() -> AsyncIterator[LiveDaemon]:
    async with home() as place:
        make_model("llama", place.paths.models / "tiny", max_position_embeddings=4096)
        async with daemon(place, real=True, **GROUP) as found:
            yield found


async def ranks_of(live: LiveDaemon) -> list[psutil.Process]:
    leader = psutil.Process(await live.engine_pid())
    return [leader, *leader.children()]


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


async def lose(live: LiveDaemon, rank: int, number: signal.Signals) -> None:
    """Loses a rank under a stream, which ends in one error; every process ends."""
    chunks = live.stream(max_tokens=3000, ignore_eos=True)
    while not (await anext(chunks))["choices"][0]["delta"].get("content"):
        pass
    ranks = await ranks_of(live)
    assert len(ranks) == 2
    ranks[rank].send_signal(number)
    rest = [chunk async for chunk in chunks]
    assert [("error" in chunk) for chunk in rest].count(True) == 1
    assert "error" in rest[-1]
    await eventually(lambda: all(map(has_ended, ranks)), 30)


@pytest.mark.timeout(240)
async def test_a_group_is_started_again_after_a_rank_was_killed(live: LiveDaemon) -> None:
    greedy = {"max_tokens": 8, "temperature": 0}
    status, first = await live.chat(**greedy)
    assert status == 200
    await lose(live, 1, signal.SIGKILL)
    status, again = await live.chat(**greedy)
    assert status == 200
    assert again["choices"] == first["choices"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("rank", [0, 1])
async def test_a_stream_ends_once_whichever_rank_is_lost(
    live: LiveDaemon, rank: int, number: signal.Signals
) -> None:
    async def answers() -> bool:  # after a pause, where it failed again and again
        return (await live.chat(max_tokens=2))[0] == 200

    for _ in range(3):
        await eventually(answers, 120)
        await lose(live, rank, number)
