"""The whole service with a model over several ranks: what clients see when a rank is lost."""

from __future__ import annotations

import random
import signal
from collections.abc import AsyncIterator

import psutil
import pytest
from live_daemon import LiveDaemon, daemon, eventually, home
from tiny_models import make_model

from swiftlm_proto import messages as m

GROUP = {
    "cluster_hosts": "localhost,localhost",
    "cluster_lost_after": 15,
    "engine_cluster": "true",
    "engine_stall": 60,
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


async def lose(live: LiveDaemon, rank: int, number: signal.Signals) -> str:
    """Loses a rank under two streams, which end in one error each; every process ends.

    Returns what one of the clients was told.
    """
    streams = [live.stream(max_tokens=3000, ignore_eos=True) for _ in range(2)]
    for chunks in streams:
        while not (await anext(chunks))["choices"][0]["delta"].get("content"):
            pass
    ranks = await ranks_of(live)
    ranks[rank].send_signal(number)
    for chunks in streams:
        rest = [chunk async for chunk in chunks]
        assert [("error" in chunk) for chunk in rest].count(True) == 1
        assert "error" in rest[-1]
    await eventually(lambda: all(map(has_ended, ranks)), 30)
    return str(rest[-1]["error"]["message"])


@pytest.mark.timeout(240)
async def test_a_group_is_started_again_after_a_rank_was_killed(live: LiveDaemon) -> None:
    greedy = {"max_tokens": 8, "temperature": 0}
    status, first = await live.chat(**greedy)
    assert status == 200
    assert "rank 1 on localhost" in await lose(live, 1, signal.SIGKILL)
    status, again = await live.chat(**greedy)
    assert status == 200
    assert again["choices"] == first["choices"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("size", [2, 4])
async def test_streams_end_once_whichever_of_the_ranks_is_lost_thirty_times(size: int) -> None:
    lots = random.Random(size)

    async with home() as place:
        shape = {"num_key_value_heads": 4, "max_position_embeddings": 4096}
        make_model("llama", place.paths.models / "tiny", **shape)
        hosts = {"cluster_hosts": ",".join(["localhost"] * size)}
        async with daemon(place, real=True, **GROUP | hosts | {"engine_stall": 600}) as live:

            async def answers() -> bool:
                return (await live.chat(max_tokens=2))[0] == 200

            for _ in range(30):
                # So many crashes are too many for any model that no operator asks for.
                _ = [event async for event in live.admin.load(m.LoadModelRequest(model="tiny"))]
                await eventually(answers, 400)
                rank = lots.randrange(size)
                number = lots.choice([signal.SIGKILL, signal.SIGSTOP])
                told = await lose(live, rank, number)
                # Who kills the leader kills what the daemon knows: it says so, and no rank.
                named = f"rank {rank} on" if (rank, number) != (0, signal.SIGKILL) else ""
                assert named in told, (rank, number, told)
