"""A model over this machine and one that lends itself: real engines, two homes, one loopback.

The other host fetched its share, and has nothing else of the model.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_hub import FakeHub
from joined_host import JoinedHost, other_host
from live_daemon import LiveDaemon, daemon, eventually, home
from sharded_models import files, shard
from tiny_models import make_model

from swiftlm_proto import messages as m

pytestmark = pytest.mark.timeout(240)
SECRET = b"the secret of a group of tests"
MODEL = "org/tiny"


@pytest.fixture
async def host() -> AsyncIterator[JoinedHost]:
    async with other_host() as found:
        found.take_secret(SECRET)
        yield found


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[FakeHub]:
    async with FakeHub() as hub:
        folder = make_model("llama", tmp_path / "model", max_position_embeddings=4096)
        hub.add(MODEL, files(shard(folder)))
        yield hub


@pytest.fixture
async def live(host: JoinedHost, hub: FakeHub) -> AsyncIterator[LiveDaemon]:
    async with home() as place:
        for environ in (place.environ, host.environ):
            environ["HF_ENDPOINT"] = hub.url
        leader = JoinedHost(place.root)
        leader.take_secret(SECRET)
        group = {
            "cluster_hosts": "localhost,studio",
            "cluster_agents": json.dumps({"studio": host.agent}),
            "cluster_lost_after": 20,  # hosts are lost by a closed connection here
            "engine_cluster": "true",
            "engine_cluster_split": "pipeline",
        }
        await host.start()
        async with daemon(place, real=True, **group) as found:
            await followed(found.admin.pull(m.PullRequest(model=MODEL)))
            yield found


async def followed(events: AsyncIterator[m.OperationEvent]) -> m.OperationEvent:
    """To the end of an operation that succeeds."""
    async for event in events:
        assert event.fault is None, event.fault
    assert event.done
    return event


async def chat(live: LiveDaemon, **fields: Any) -> tuple[int, dict[str, Any]]:
    return await live.chat(MODEL, **fields)


def ranks(host: JoinedHost) -> list[psutil.Process]:
    assert host.child is not None
    return psutil.Process(host.child.pid).children()


async def test_a_model_runs_over_a_host_that_lends_itself(
    live: LiveDaemon, host: JoinedHost, hub: FakeHub
) -> None:
    status, answer = await chat(live, max_tokens=2)
    assert status >= 400
    assert f"`swiftlmctl cluster pull {MODEL}`" in answer["error"]["message"]
    pulled = hub.body_bytes("model-00001-of-00002.safetensors")
    last = await followed(live.cluster.pull(m.PullGroupRequest(model=MODEL)))
    assert last.detail == "studio holds layers 1 to 1"
    headers = hub.body_bytes("model-00001-of-00002.safetensors") - pulled
    assert headers < pulled / 2

    status, answer = await chat(live, max_tokens=8, temperature=0)
    assert status == 200, answer
    assert answer["usage"]["completion_tokens"] == 8
    (rank,) = ranks(host)
    words = rank.cmdline()
    folder = Path(words[words.index("--folder") + 1])
    assert folder.is_relative_to(host.paths.cache)
    assert (folder / "model-00001-of-00002.safetensors").stat().st_blocks * 512 < pulled / 2
    model = await live.model(MODEL)
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
    await followed(live.cluster.pull(m.PullGroupRequest(model=MODEL)))
    chunks = live.stream(MODEL, max_tokens=3000, ignore_eos=True)
    while not (await anext(chunks))["choices"][0]["delta"].get("content"):
        pass
    (rank,) = ranks(host)
    await host.kill()
    rest = [chunk async for chunk in chunks]
    assert [("error" in chunk) for chunk in rest].count(True) == 1
    await eventually(lambda: not rank.is_running(), 30)
    status, answer = await chat(live, max_tokens=2)
    assert status >= 400
    # By the plan, or by the start of the engine that was planned before.
    assert "studio" in answer["error"]["message"]
    assert " does not answer at" in answer["error"]["message"]

    await host.start()

    async def answers() -> bool:
        return (await chat(live, max_tokens=2))[0] == 200

    await eventually(answers, 120)
