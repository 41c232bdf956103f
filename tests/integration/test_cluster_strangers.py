"""What strangers, and hosts that go wrong, can do to a group: nothing that outlasts them."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swiftlm_engine.cluster import remote_follower, rendezvous
from swiftlm_engine.cluster.group import Group
from swiftlm_engine.cluster.leader import Follower
from swiftlm_engine.cluster.link import Link, LinkLost
from swiftlm_engine.cluster.rendezvous import Door, gather
from swiftlm_engine.messages import EngineFault
from swiftlm_proto.version import version
from swiftlmd.cluster.agent import Agent, Lent

SECRET = b"the secret of a group of tests"
HELLO = {"rank": 1, "version": "1.0", "ring": "127.0.0.1:1", "memory": 1}


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path


@pytest.fixture
def group(secret_file: Path) -> Group:
    return Group(("localhost", "localhost"), secret_file)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def test_a_greeting_has_one_time_out_and_not_one_for_each_byte() -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(0.3)
    ended = threading.Event()

    def drip() -> None:
        theirs.sendall(frame(b" " * 1000)[:4])
        while not ended.wait(0.05):
            theirs.sendall(b" ")

    with theirs, Link(ours) as link, ThreadPoolExecutor(1) as pool:
        dripping = pool.submit(drip)
        try:
            with pytest.raises(LinkLost, match="silent for too long"):
                link.greet_follower(SECRET)
            assert ours.gettimeout() == 0.3
        finally:
            ended.set()
        dripping.result(5)


@pytest.mark.parametrize(
    "greeting",
    [
        b"[" * 1024,
        b'{"nonce": "\\ud800", "proof": "\\udfff"}',
        b"\xff\xfe{}",
        b"[]",
        b'{"nonce": 1e999}',
    ],
    ids=["deep", "half a character", "no text", "no message", "no nonce"],
)
def test_a_greeting_of_any_kind_is_at_worst_a_strangers(greeting: bytes) -> None:
    ours, theirs = socket.socketpair()
    with Link(ours) as link, theirs:
        theirs.sendall(frame(greeting))
        with pytest.raises(LinkLost):
            link.greet_follower(SECRET)


def called(listener: socket.socket, hello: dict[str, object]) -> Link:
    """One that knows the secret, and what it says of itself."""
    link = Link(socket.create_connection(listener.getsockname(), 30))
    link.greet_leader(SECRET)
    link.send(hello)
    return link


def arrived(door: Door, listener: socket.socket, hello: dict[str, object]) -> dict[int, Follower]:
    """Looks until the caller is let in or sent away."""
    ranks: dict[int, Follower] = {}
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(called, listener, hello)
        while not calling.done():
            door.look(listener, ranks)
        with calling.result() as link:
            left = threading.Event()

            def until_closed() -> None:
                with pytest.raises(LinkLost):
                    link.receive()
                left.set()

            waiting = pool.submit(until_closed)
            while not ranks and not left.is_set():
                door.look(listener, ranks)
            for follower in ranks.values():
                follower.link.close()
            waiting.result(30)
    return ranks


def test_a_silent_stranger_does_not_keep_a_rank_waiting(
    group: Group, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "GREETING_S", 3600)
    with socket.create_connection(listener.getsockname()):
        assert set(arrived(Door(group, SECRET, "1.0"), listener, HELLO)) == {1}


@pytest.mark.parametrize(
    "changed", [{"rank": 0}, {"rank": 2}, {"rank": -1}, {"rank": 1e999}, {"memory": None}]
)
def test_no_rank_that_the_group_does_not_wait_for_is_let_in(
    group: Group, listener: socket.socket, changed: dict[str, object]
) -> None:
    assert arrived(Door(group, SECRET, "1.0"), listener, HELLO | changed) == {}


def test_a_rank_of_another_version_is_named_with_its_host(
    group: Group, listener: socket.socket
) -> None:
    with pytest.raises(LinkLost, match=r"rank 1 on localhost runs 2\.0, this machine 1\.0"):
        arrived(Door(group, SECRET, "1.0"), listener, HELLO | {"version": "2.0"})


def test_a_group_that_cannot_listen_at_its_address_says_so(secret_file: Path) -> None:
    group = Group(("localhost", "studio"), secret_file, address="192.0.2.1")
    with pytest.raises(EngineFault, match=r"cannot listen at `cluster.address` 192\.0\.2\.1"):
        gather(group, "1.0")


def lent(secret_file: Path, models: dict[str, Path], engine: str = "") -> Lent:
    def report() -> None:
        raise AssertionError("nobody asks for it")

    return Lent(
        secret_file=secret_file,
        logs=secret_file.parent / "logs",
        report=report,  # type: ignore[arg-type]  # never called
        models=lambda: models,
        fetch=report,  # type: ignore[arg-type]  # never called
        engine_command=[sys.executable, "-c", engine],
        engine_environment={},
    )


@pytest.mark.parametrize(
    ("models", "engine", "said"),
    [
        ({}, "", "is not lent: its agent says: the model's files are not there"),
        ({"f1": Path()}, "exit('no way to you')", "ended with code 1 there: no way to you"),
    ],
    ids=["no files", "a rank that ends"],
)
def test_why_a_host_gave_no_rank_is_in_what_the_load_says(
    secret_file: Path,
    listener: socket.socket,
    models: dict[str, Path],
    engine: str,
    said: str,
    room_path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", room_path)
    host, port = listener.getsockname()
    agent = Agent(lent(secret_file, models, engine))
    threading.Thread(target=agent.serve, args=(listener,), daemon=True).start()
    agents = {"studio": f"{host}:{port}"}
    group = Group(("localhost", "studio"), secret_file, agents=agents, fingerprint="f1")
    with pytest.raises(EngineFault, match=f"rank 1 on studio {said}"):
        gather(group, version())


def test_a_host_whose_agent_does_not_answer_is_named_once(
    secret_file: Path,
    listener: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    monkeypatch.setattr(sys, "argv", ["hire", address, str(secret_file), str(os.getppid())])
    assert remote_follower.main() == 1
    said = f"is not lent: its agent does not answer at {address}: Connection refused\n"
    assert capsys.readouterr().err == said


class FailingListener:
    """Fails once as a system does that has no file left, and is then closed."""

    def __init__(self) -> None:
        self.asked = 0

    def accept(self) -> None:
        self.asked += 1
        raise OSError(errno.EMFILE if self.asked == 1 else errno.EBADF, "failed")

    def fileno(self) -> int:
        return 3 if self.asked == 1 else -1


def test_an_agent_listens_on_after_a_connection_that_failed(secret_file: Path) -> None:
    listener = FailingListener()
    Agent(lent(secret_file, {})).serve(listener)  # type: ignore[arg-type]  # as much as is used
    assert listener.asked == 2


RING = """
import sys
from swiftlm_engine.cluster import ring
ring.JOIN_S = 0.5
ring.join_ring([ring.free_address("127.0.0.1"), ring.free_address("127.0.0.1")], int(sys.argv[1]))
"""


def test_ranks_of_one_machine_are_never_given_the_same_port(room_path: str) -> None:
    two = """
import socket, sys
from swiftlm_engine.cluster.ring import ReservedPort, free_address
reserved = ReservedPort("127.0.0.1")
host, _, port = reserved.address.rpartition(":")
try:
    socket.socket().bind((host, int(port)))
except OSError:
    pass
else:
    sys.exit("another program was given the port")
assert all(free_address(host) != reserved.address for _ in range(2000))
reserved.release()
reserved.release()
socket.socket().bind((host, int(port)))
"""
    command = [sys.executable, "-c", two]
    subprocess.run(command, env={"PYTHONPATH": room_path}, timeout=120, check=True)


def test_a_rank_whose_neighbour_never_comes_ends(room_path: str) -> None:
    command = [sys.executable, "-c", RING, "0"]
    waiting = subprocess.run(command, env={"PYTHONPATH": room_path}, timeout=60, check=False)
    assert waiting.returncode == -signal.SIGALRM
