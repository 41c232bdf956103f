"""The agent of a host over real sockets: who gets in, and what may be asked of it."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from swiftlm_engine.brain.plan import MachineLimits, prior_speed
from swiftlm_engine.brain.plan.share import Share, Split
from swiftlm_engine.cluster.link import Link, LinkLost, Stranger
from swiftlm_proto import messages as m
from swiftlm_proto.paths import under
from swiftlm_proto.version import version
from swiftlmd.cluster.agent import MAX_STRANGERS_OF_ONE, MAX_VISITORS, Agent, Doorstep, Lent
from swiftlmd.hosts import visit
from swiftlmd.hosts.checks import Examiner
from swiftlmd.hosts.fetching import Wish
from swiftlmd.hosts.registry import Host
from swiftlmd.hosts.report import own_report
from swiftlmd.hosts.transfer import follow_fetch
from swiftlmd.store.errors import PullFailed
from swiftlmd.store.jobs import Report
from swiftlmd.store.types import PullProgress, Stage

SECRET = b"the secret of a group of tests"
MACHINE = MachineLimits(
    ram_bytes=8 * 10**9,
    reclaimable_bytes=6 * 10**9,
    num_cores=4,
    speed=prior_speed("", "cpu", 4),
)
# Stands for an engine: says what it was called with and waits to be killed.
ENGINE = "import sys, time; print(sys.argv[1:], flush=True); time.sleep(60)"


class Readings:
    def limits(self, *, committed_bytes: int, returning_bytes: int) -> MachineLimits:
        return MACHINE


@pytest.fixture
def examiner(tmp_path: Path) -> Examiner:
    return Examiner(under(tmp_path / "leader"), Readings())


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


@pytest.fixture
def lent(tmp_path: Path, listener: socket.socket, examiner: Examiner) -> Lent:
    """An agent that runs, with the leader's secret and one model."""
    for path in (tmp_path / "secret", examiner.secret_file):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(SECRET)
        path.chmod(0o600)
    lent = Lent(
        secret_file=tmp_path / "secret",
        logs=tmp_path / "logs",
        report=lambda: own_report(MACHINE),
        models=lambda: {"f1": tmp_path / "model"},
        fetch=no_hub,
        engine_command=[sys.executable, "-c", ENGINE],
        engine_environment={},
    )
    threading.Thread(target=Agent(lent).serve, args=(listener,), daemon=True).start()
    return lent


async def no_hub(wish: Wish, report: Report) -> None:
    """Says that it began, and why it ends."""
    report(PullProgress(Stage.DOWNLOAD, 1, 4))
    await asyncio.sleep(0)
    raise PullFailed(f"nobody has {wish.repo}, layers {wish.share.layers}")


def where(listener: socket.socket) -> Host:
    host, port = listener.getsockname()
    return Host("studio", 1, f"{host}:{port}")


def called(listener: socket.socket, secret: bytes = SECRET) -> Link:
    link = Link(socket.create_connection(listener.getsockname(), 5))
    link.greet_agent(secret)
    return link


def test_a_host_reports_itself_its_models_and_its_link(
    lent: Lent, listener: socket.socket, examiner: Examiner
) -> None:
    check = examiner.examine(where(listener), {"here": "f1", "not here": "f2"})
    assert [problem.kind for problem in check.problems] == [m.HostProblemKind.MODEL_MISSING]
    assert check.usable
    assert check.models == {"here"}
    assert check.report is not None
    assert check.report.machine == MACHINE
    assert check.link is not None
    assert check.link.bytes_s.low > 0
    assert check.report.visitor == "127.0.0.1"


def test_a_stranger_is_told_nothing_but_that_he_is_one(lent: Lent, listener: socket.socket) -> None:
    with pytest.raises(Stranger):
        called(listener, SECRET + b"!")


def test_a_proof_for_a_leader_is_none_for_an_agent(lent: Lent, listener: socket.socket) -> None:
    with (
        Link(socket.create_connection(listener.getsockname(), 5)) as link,
        pytest.raises(Stranger),
    ):
        link.greet_leader(SECRET)


def test_an_agent_whose_secret_others_can_read_lets_nobody_in(
    lent: Lent, listener: socket.socket
) -> None:
    lent.secret_file.chmod(0o644)
    with pytest.raises(LinkLost):
        called(listener)


def test_a_host_that_hangs_is_silent_and_not_unreachable(
    listener: socket.socket, examiner: Examiner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit, "CONNECT_S", 0.2)
    examiner.secret_file.parent.mkdir(parents=True)
    examiner.secret_file.write_bytes(SECRET)
    examiner.secret_file.chmod(0o600)
    (problem,) = examiner.examine(where(listener), {}).problems  # listens, and never accepts
    assert problem.kind is m.HostProblemKind.SILENT
    assert "start it again" in problem.fix


def test_a_leader_whose_secret_others_can_read_visits_nobody(
    lent: Lent, listener: socket.socket, examiner: Examiner
) -> None:
    examiner.secret_file.chmod(0o644)
    (problem,) = examiner.examine(where(listener), {}).problems
    assert problem.kind is m.HostProblemKind.SECRET
    assert "can be read by others" in problem.reason


def test_no_more_visitors_than_seats(lent: Lent, listener: socket.socket) -> None:
    visitors = [called(listener) for _ in range(MAX_VISITORS)]
    with pytest.raises(LinkLost, match="visitors already"):
        called(listener)
    for visitor in visitors:
        visitor.close()


@pytest.mark.parametrize("silent", [MAX_VISITORS, MAX_STRANGERS_OF_ONE, MAX_STRANGERS_OF_ONE + 20])
def test_connections_that_prove_nothing_keep_nobody_out(
    lent: Lent, listener: socket.socket, silent: int
) -> None:
    crowd = [socket.create_connection(listener.getsockname(), 5) for _ in range(silent)]
    try:
        for _ in range(3):
            with called(listener) as link:
                link.send({"do": "find", "fingerprints": ["f1"]})
                assert link.receive() == {"found": {"f1": None}}
    finally:
        for connection in crowd:
            connection.close()


def test_of_a_crowd_the_longest_there_goes() -> None:
    doorstep = Doorstep()
    pairs = [socket.socketpair() for _ in range(MAX_STRANGERS_OF_ONE + 1)]
    try:
        for ours, _ in pairs:
            doorstep.enter(ours, "10.0.0.1")
        pairs[0][1].settimeout(5)
        assert pairs[0][1].recv(1) == b""  # turned away
        pairs[1][1].setblocking(False)
        with pytest.raises(BlockingIOError):
            pairs[1][1].recv(1)
    finally:
        for pair in pairs:
            for end in pair:
                end.close()


def test_ranks_under_way_take_no_seats(lent: Lent, listener: socket.socket) -> None:
    asked = {"leader": "127.0.0.1:1", "rank": "1", "fingerprint": "f1", "version": version()}
    ranks = [called(listener) for _ in range(MAX_VISITORS)]
    try:
        for rank in ranks:
            rank.send({"do": "start", **asked})
            assert "started" in rank.receive()
        called(listener).close()
    finally:
        for rank in ranks:
            rank.close()


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"version": "9.9.9"}, f"it runs {version()}, its leader 9.9.9; install one version"),
        ({"fingerprint": "f2"}, "the model's files are not there"),
        ({"fingerprint": "/etc"}, "the model's files are not there"),
    ],
)
def test_no_rank_is_lent_to_another_version_or_for_files_that_are_not_there(
    lent: Lent, listener: socket.socket, changed: dict[str, str], fault: str
) -> None:
    asked = {"leader": "127.0.0.1:1", "rank": "1", "fingerprint": "f1", "version": version()}
    with called(listener) as link:
        link.send({"do": "start", **asked, **changed})
        assert link.receive() == {"fault": fault}
    assert not lent.logs.exists()


def test_progress_and_faults_of_a_fetch_reach_the_leader(
    lent: Lent, listener: socket.socket
) -> None:
    wish = Wish("org/name", "main", "f1", Share(Split.PIPELINE, range(1, 3)))
    with called(listener) as link:
        reports = follow_fetch(link, wish)
        assert next(reports).stage is Stage.QUEUED
        with pytest.raises(PullFailed, match=r"nobody has org/name, layers range\(1, 3\)"):
            list(reports)
        link.send({"do": "fetch", "repo": "org/name"})
        with pytest.raises(LinkLost):
            link.receive()


def test_a_rank_gets_its_own_folder_and_ends_with_its_leaders_connection(
    lent: Lent, listener: socket.socket, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # refused, the rank would end by itself
        leader = f"127.0.0.1:{silent.getsockname()[1]}"
        asked = {"leader": leader, "rank": "3", "fingerprint": "f1", "version": version()}
        link = called(listener)
        link.send({"do": "start", **asked})
        child = psutil.Process(link.receive()["started"])
        words = child.cmdline()
        assert words[words.index("--folder") + 1] == str(tmp_path / "model")
        assert words[words.index("--secret-file") + 1] == str(lent.secret_file)
        link.close()
        psutil.wait_procs([child], timeout=10)
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
