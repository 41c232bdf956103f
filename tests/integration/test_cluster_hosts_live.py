"""The hosts of a group: a daemon and `swiftlmd join` in homes of their own, all on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator

import psutil
import pytest
from hollow_models import make_hollow_model
from joined_host import JoinedHost, other_host
from live_daemon import Home, LiveDaemon, daemon, home

from swiftlm_proto import messages as m

pytestmark = pytest.mark.timeout(180)
Problem = m.HostProblemKind


@pytest.fixture
async def live() -> AsyncIterator[LiveDaemon]:
    async with home("tiny") as place, daemon(place) as running:
        yield running


@pytest.fixture
async def host() -> AsyncIterator[JoinedHost]:
    async with other_host() as found:
        yield found


async def ctl(place: Home, *words: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "swiftlmctl", "cluster", *words,
        env={**os.environ, "SWIFTLM_HOME": str(place.root), "HOME": str(place.root),
             "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


async def add(live: LiveDaemon, agent: str) -> m.AddHostReply:
    return await live.cluster.add(m.AddHostRequest(name="studio", agent=agent))


async def check(live: LiveDaemon, model: str = "") -> list[m.HostCheck]:
    return (await live.cluster.check(m.CheckHostsRequest(model=model))).checks


def kinds(found: m.HostCheck | None) -> list[m.HostProblemKind]:
    assert found is not None
    return [problem.kind for problem in found.problems]


def secret_of(live: LiveDaemon) -> bytes:
    return (live.home.paths.state / "cluster-secret").read_bytes()


def sockets(pid: int) -> list[tuple[str, int]]:
    """Where a process takes connections over the network."""
    found = psutil.Process(pid).net_connections(kind="inet")
    return [tuple(entry.laddr) for entry in found if entry.status == psutil.CONN_LISTEN]


async def taken_in(live: LiveDaemon, host: JoinedHost) -> None:
    """The way to a group that the daemon's own words lead: agent, secret, then the host is in."""
    reply = await add(live, host.agent)
    assert kinds(reply.check) == [Problem.UNREACHABLE]
    assert reply.check is not None
    fix = reply.check.problems[0].fix
    assert fix.startswith(f"on studio: `swiftlmd join --listen {host.agent}`, beside a copy of ")
    with pytest.raises(AssertionError, match=f"copy it from its leader to {host.paths.state}"):
        await host.start()
    host.take_secret(secret_of(live))
    await host.start()
    assert kinds((await add(live, host.agent)).check) == []


async def test_a_host_is_taken_in_looked_after_planned_with_and_let_go(
    live: LiveDaemon, host: JoinedHost
) -> None:
    # A machine without a group knows nothing of groups.
    assert sockets(live.pid) == [("127.0.0.1", live.home.port)]
    assert psutil.Process(live.pid).children() == []
    assert not (live.home.paths.state / "cluster-secret").exists()

    make_hollow_model(host.paths.models / "under-another-name")
    await taken_in(live, host)
    assert 'hosts = ["localhost", "studio"]' in live.home.paths.config_file.read_text()
    assert "in the group already" in str((await add(live, host.agent)).fault)

    found = (await check(live, "tiny"))[1]
    assert (found.problems, found.models) == ([], ["tiny"])
    assert found.memory_bytes == psutil.virtual_memory().total
    assert found.link is not None
    assert 0 < found.link.bytes_s_low <= found.link.bytes_s_median <= found.link.bytes_s_high
    assert 0 < found.link.delay_s_low <= found.link.delay_s_median <= found.link.delay_s_high

    make_hollow_model(live.home.paths.models / "other")
    config = live.home.paths.models / "other" / "config.json"
    config.write_text(config.read_text().replace("4096", "2048"))
    assert kinds((await check(live, "other"))[1]) == [Problem.MODEL_MISSING]

    code, said = await ctl(live.home, "plan", "tiny", "--json")
    assert code == 0
    plan = json.loads(said)
    assert (plan["verdict"], plan["hosts_needed"]) == ("one", 1)
    assert [each["name"] for each in plan["hosts"]] == ["this machine", "studio"]
    ways = {(way["split"], way["fits"]) for way in plan["ways"]}
    assert ways == {("tensor", True), ("pipeline", True)}

    await host.kill()
    code, said = await ctl(live.home, "check")
    assert code == 1
    assert "unreachable" in said
    reply = await live.cluster.plan(m.PlanGroupRequest(model="tiny"))
    assert [kinds(each) for each in reply.left_out] == [[Problem.UNREACHABLE]]
    assert json.loads(reply.plan)["ways"] == []

    await live.cluster.remove(m.RemoveHostRequest(name="studio"))
    hosts = (await live.cluster.list(m.ListHostsRequest())).hosts
    assert [each.name for each in hosts] == ["localhost"]
    assert "studio" not in live.home.paths.config_file.read_text()
    assert sockets(live.pid) == [("127.0.0.1", live.home.port)]


async def test_another_secret_and_other_versions_are_named_and_kept_out(live: LiveDaemon) -> None:
    await add(live, "127.0.0.1:1")  # makes the secret
    secret = secret_of(live)
    async with (
        other_host() as stranger,
        other_host(swiftlm="9.9.9") as newer,
        other_host(mlx="0.1.2") as older,
    ):
        for host in (stranger, newer, older):
            host.take_secret(secret if host is not stranger else secret[::-1])
        await asyncio.gather(*(host.start() for host in (stranger, newer, older)))
        for host, kind, reason in (
            (stranger, Problem.SECRET, "it has another secret than this machine"),
            (newer, Problem.VERSION, "it has swiftlm 9.9.9, this machine "),
            (older, Problem.MLX_VERSION, "it has MLX 0.1.2, this machine "),
        ):
            reply = await add(live, host.agent)
            assert kinds(reply.check) == [kind]
            assert reply.check is not None
            assert reply.check.problems[0].reason.startswith(reason)
        assert "does not know the group's secret" in stranger.said()
    assert not live.home.paths.config_file.exists()
