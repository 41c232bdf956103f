"""The hosts of a group in the configuration, and what a load is told of them."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swiftlm_engine.brain.calibration import Spread
from swiftlm_engine.brain.plan import LinkSpeed, MachineLimits, Range
from swiftlm_engine.cluster.link import LinkLost
from swiftlm_proto import messages as m
from swiftlmd.config.live import LiveConfiguration
from swiftlmd.config.load import ConfigError, load
from swiftlmd.config.settings import Settings
from swiftlmd.faults import ServiceError
from swiftlmd.hosts.checks import HostCheck, Problem
from swiftlmd.hosts.link_speed import LinkMeasure
from swiftlmd.hosts.registry import DEFAULT_PORT, Host, Hosts, machines, with_port
from swiftlmd.hosts.report import HostReport, from_message, to_message
from swiftlmd.hosts.survey import Survey

GB = 10**9
MACHINE = MachineLimits(ram_bytes=16 * GB, reclaimable_bytes=12 * GB)
LINK = LinkMeasure(7, Spread.of([1e9, 2e9, 3e9]), Spread.of([1e-5, 2e-5, 3e-5]))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


@pytest.fixture
def hosts(path: Path) -> Hosts:
    return Hosts(LiveConfiguration(load(path, {}, {}), {}, {}))


def cluster_table(path: Path) -> dict[str, object]:
    table: dict[str, object] = tomllib.loads(path.read_text()).get("cluster", {})
    return table


def test_this_machine_leads_and_others_follow_in_their_order(hosts: Hosts, path: Path) -> None:
    hosts.add(hosts.proposed("b", "10.0.0.2"), "10.0.0.1")
    hosts.add(hosts.proposed("c", "10.0.0.3:99"), "10.9.9.9")
    assert hosts.listed() == (
        Host("localhost", 0),
        Host("b", 1, "10.0.0.2:5415"),
        Host("c", 2, "10.0.0.3:99"),
    )
    # The address at which the first host reached us stays: it is the group's network.
    assert cluster_table(path)["address"] == "10.0.0.1"


@pytest.mark.parametrize("address", ["fe80::1", "::ffff:10.0.0.1"])
def test_a_host_that_comes_by_ipv6_is_told_another_way(
    hosts: Hosts, path: Path, address: str
) -> None:
    with pytest.raises(ServiceError, match=f"reaches this machine at {address}"):
        hosts.add(hosts.proposed("b", "[fe80::2]:5415"), address)
    assert not path.exists()


def test_the_last_host_that_leaves_leaves_no_trace(hosts: Hosts, path: Path) -> None:
    hosts.add(hosts.proposed("b", "10.0.0.2"), "10.0.0.1")
    hosts.add(hosts.proposed("c", "10.0.0.3"), "10.0.0.1")
    hosts.remove("b")
    assert hosts.listed()[1] == Host("c", 1, "10.0.0.3:5415")
    hosts.remove("c")
    assert cluster_table(path) == {}


@pytest.mark.parametrize("num_written", [0, 1, 2])
def test_a_removal_that_breaks_off_leaves_no_host_without_its_agent(
    hosts: Hosts, path: Path, num_written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.add(hosts.proposed("b", "10.0.0.2"), "10.0.0.1")
    hosts.add(hosts.proposed("c", "10.0.0.3"), "10.0.0.1")
    left = [num_written]

    def breaks(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: str) -> Any:
            if not left[0]:
                raise ConfigError("the disk is full")
            left[0] -= 1
            return change(*arguments)

        return changed

    live = hosts._configuration
    monkeypatch.setattr(live, "set", breaks(live.set))
    monkeypatch.setattr(live, "unset", breaks(live.unset))
    with contextlib.suppress(ConfigError):
        hosts.remove("b")
    again = Hosts(LiveConfiguration(load(path, {}, {}), {}, {})).listed()
    assert all(host.agent for host in again if not host.here)
    assert (len(again) == 3) == (num_written == 0)


@pytest.mark.parametrize("name", ["", "-oProxyCommand=x", "localhost", "b\n", "x" * 300])
def test_what_can_be_no_other_host_is_refused(hosts: Hosts, name: str) -> None:
    if name == "b\n":
        assert hosts.proposed(name, "10.0.0.2").name == "b"
        return
    with pytest.raises(ServiceError):
        hosts.proposed(name, "10.0.0.2")


@pytest.mark.parametrize("address", ["host:", ":5", "host:0", "host:70000", "host:x"])
def test_an_address_without_a_port_that_can_be_is_refused(address: str) -> None:
    with pytest.raises(ServiceError, match="HOST:PORT"):
        with_port(address)


@pytest.mark.parametrize("address", ["fd00::2", "[fd00::2]", "fe80::1:5415", "::1"])
def test_an_ipv6_address_is_refused_for_what_it_is(address: str) -> None:
    with pytest.raises(ServiceError, match="ranks speak IPv4 only"):
        with_port(address)


def test_a_group_on_one_machine_keeps_no_address_of_hosts_that_left(
    hosts: Hosts, path: Path
) -> None:
    path.write_text('[cluster]\nhosts = ["localhost", "localhost"]\n')
    both = Hosts(LiveConfiguration(load(path, {}, {}), {}, {}))
    both.add(both.proposed("b", "10.0.0.2"), "10.0.0.1")
    both.remove("b")
    assert cluster_table(path) == {"hosts": ["localhost", "localhost"]}


def test_a_machine_with_several_ranks_is_planned_with_once_and_the_leader_first() -> None:
    ranks = [Host(name, rank) for rank, name in enumerate(("localhost", "b", "localhost", "b"))]
    assert machines(ranks) == ranks[:2]


def test_agents_and_https_have_ports_of_their_own() -> None:
    assert DEFAULT_PORT not in (Settings().http_port, Settings().http_tls_port)


@pytest.mark.parametrize("name", ["unknown", "localhost"])
def test_neither_a_stranger_nor_the_leader_can_be_removed(hosts: Hosts, name: str) -> None:
    with pytest.raises(ServiceError):
        hosts.remove(name)


def test_a_report_crosses_the_wire_and_nonsense_is_said_to_be_such() -> None:
    message = to_message(HostReport("1", "2", MACHINE))
    assert from_message(message).machine.reclaimable_bytes == 12 * GB
    for broken in (
        {},
        {**message, "machine": 3},
        {**message, "machine": {"accelerator": "abacus"}},
        {**message, "machine": {**message["machine"], "ram_bytes": float("inf")}},
    ):
        with pytest.raises(LinkLost, match="no report"):
            from_message(broken)


class FakeExaminer:
    """Answers as it is told, and counts."""

    def __init__(self) -> None:
        self.measured: list[bool] = []
        self.problem: Problem | None = None

    def examine(self, host: Host, models: dict[str, str], *, measure: bool = True) -> HostCheck:
        if host.here:
            return HostCheck(host, report=HostReport("1", "2", MACHINE))
        self.measured.append(measure)
        problems = (self.problem,) if self.problem else ()
        return HostCheck(host, problems, HostReport("1", "2", MACHINE), LINK if measure else None)


GROUP = Settings(cluster_hosts=("localhost", "b"), cluster_agents={"b": "10.0.0.2:1"})


def test_a_load_measures_a_link_once_and_believes_a_report_for_a_second() -> None:
    examiner, now = FakeExaminer(), [0.0]
    survey = Survey(examiner, lambda: now[0])  # type: ignore[arg-type] # a fake
    for time in (0.0, 0.5, 1.1):
        now[0] = time
        found = survey.hosts(GROUP, "model", "f1", MACHINE)
        assert [host.name for host in found] == ["this machine", "b"]
        assert found[1].link == LinkSpeed(Range(1e9, 3e9), Range(1e-5, 3e-5))
    assert examiner.measured == [True, False]


def test_a_load_is_refused_with_the_host_its_problem_and_the_remedy() -> None:
    examiner = FakeExaminer()
    examiner.problem = Problem(m.HostProblemKind.VERSION, "it has swiftlm 9", "install one")
    survey = Survey(examiner, lambda: 0.0)  # type: ignore[arg-type] # a fake
    with pytest.raises(ServiceError, match="host 'b' of the group: it has swiftlm 9; install one"):
        survey.hosts(GROUP, "model", "f1", MACHINE)
    examiner.problem = None  # and is asked again at once
    assert len(survey.hosts(GROUP, "model", "f1", MACHINE)) == 2


def test_ranks_on_one_machine_share_its_memory() -> None:
    settings = Settings(cluster_hosts=("localhost", "localhost"))
    survey = Survey(FakeExaminer(), lambda: 0.0)  # type: ignore[arg-type] # a fake
    found = survey.hosts(settings, "model", "f1", MACHINE)
    assert [host.machine.reclaimable_bytes for host in found] == [6 * GB, 6 * GB]
    assert (found[0].link is None, found[1].link is None) == (True, False)


def test_hosts_that_ssh_reaches_are_planned_with_like_those_with_an_agent() -> None:
    settings = Settings(cluster_hosts=("localhost", "by-ssh"))
    survey = Survey(FakeExaminer(), lambda: 0.0)  # type: ignore[arg-type] # a fake
    found = survey.hosts(settings, "model", "f1", MACHINE)
    assert [host.name for host in found] == ["this machine", "by-ssh"]
    assert found[1].machine == MACHINE
