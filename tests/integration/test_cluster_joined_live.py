"""A model over this machine and one that lends itself: real engines, two homes, one loopback."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator

import psutil
import pytest
from joined_host import JoinedHost, other_host
from live_daemon import LiveDaemon, daemon, eventually, home
from tiny_models import make_model

pytestmark = pytest.mark.timeout(240)
SECRET = b"the secret of a group of tests"


@pytest.fixture
async def host() -> AsyncIterator[JoinedHost]:
    async with other_host() as found:
        found.take_secret(SECRET)
        yield found


@pytest.fixture
async def live(host: JoinedHost) -> AsyncIterator[LiveDaemon]:
    async with home() as place:
        folder = make_model("llama", place.paths.models / "tiny", max_position_embeddings=4096)
        shutil.copytree(folder, host.paths.models / "the-same")
        leader = JoinedHost(place.root)
        leader.take_secret(SECRET)
        group = {
            "cluster_hosts": "localhost,studio",
            "cluster_agents": json.dumps({"studio": host.agent}),
            "cluster_lost_after": 2,
            "engine_cluster": "true",
        }
        await host.start()
        async with daemon(place, real=True, **group) as found:
            yield found


def ranks(host: JoinedHost) -> list[psutil.Process]:
    assert host.child is not None
    return psutil.Process(host.child.pid).children()


async def test_a_model_runs_over_a_host_that_lends_itself(
    live: LiveDaemon, host: JoinedHost
) -> None:
    status, answer = await live.chat(max_tokens=8, temperature=0)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 8)
    (rank,) = ranks(host)
    words = rank.cmdline()
    assert words[words.index("--folder") + 1] == str(host.paths.models / "the-same")
    model = await live.model()
    assert model is not None
    planned = json.loads(model.plan)["group"]
    assert [each["host"] for each in planned["ranks"]] == ["this machine", "studio"]
    assert model.loaded is not None
    assert any(planned["split"] in note for note in model.loaded.notes)
    assert model.loaded.weight_bytes == planned["ranks"][0]["weight_bytes"]


@pytest.mark.slow
async def test_a_host_that_is_gone_is_named_until_it_is_back(
    live: LiveDaemon, host: JoinedHost
) -> None:
    chunks = live.stream(max_tokens=3000, ignore_eos=True)
    while not (await anext(chunks))["choices"][0]["delta"].get("content"):
        pass
    (rank,) = ranks(host)
    await host.kill()
    rest = [chunk async for chunk in chunks]
    assert [("error" in chunk) for chunk in rest].count(True) == 1
    await eventually(lambda: not rank.is_running(), 30)
    status, answer = await live.chat(max_tokens=2)
    assert status >= 400
    assert "host 'studio' of the group: nobody answers" in answer["error"]["message"]

    await host.start()

    async def answers() -> bool:
        return (await live.chat(max_tokens=2))[0] == 200

    await eventually(answers, 120)
