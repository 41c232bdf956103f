"""Who may run, who may listen, who may administer."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest

from swiftlmd.admin.socket import NotOurs, SocketInUse, bound_socket, may_administer, peer_uid
from swiftlmd.lifecycle.instance import AlreadyRunning, address, sole_instance, this_instance


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Short enough for a socket address, whatever pytest calls the test."""
    link = Path(f"/tmp/sl-{os.getpid()}-{abs(hash(tmp_path)) % 10**6}")
    link.mkdir(mode=0o700)
    yield link
    for path in link.iterdir():
        path.unlink()
    link.rmdir()


class RecordedSocket:
    """A peer as getsockopt describes it, byte for byte."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.asked: list[tuple[int, int]] = []

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        self.asked.append((level, option))
        return self.content[:size]


def test_linux_peer_is_read_from_ucred() -> None:
    peer = RecordedSocket(bytes.fromhex("d2040000 e9030000 ea030000".replace(" ", "")))
    assert peer_uid(peer, "linux") == 1001


def test_macos_peer_is_read_from_xucred() -> None:
    # version 0, uid 501, 16 groups beginning with staff (20): 76 bytes
    groups = struct.pack("=16I", 20, *range(15))
    content = struct.pack("=IIh2x", 0, 501, 16) + groups
    assert len(content) == 76
    peer = RecordedSocket(content)
    assert peer_uid(peer, "darwin") == 501
    assert peer.asked == [(0, 1)]


def test_macos_credentials_of_an_unknown_version_are_refused() -> None:
    content = struct.pack("=IIh2x16I", 7, 501, 0, *([0] * 16))
    with pytest.raises(OSError, match="version 7"):
        peer_uid(RecordedSocket(content), "darwin")


def test_only_the_owner_and_root_may_administer() -> None:
    assert may_administer(501, 501)
    assert may_administer(0, 501)
    assert not may_administer(502, 501)


def test_this_kernel_agrees_with_the_recorded_layout() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert peer_uid(one) == os.getuid()


def test_a_dead_daemons_socket_is_replaced_and_the_new_one_is_private(folder: Path) -> None:
    path = folder / "ctl.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with bound_socket(path):
        assert path.stat().st_mode & 0o777 == 0o600
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not path.exists()


def test_a_live_socket_is_never_taken_over(folder: Path) -> None:
    path = folder / "ctl.sock"
    with bound_socket(path) as server:
        with pytest.raises(SocketInUse), bound_socket(path):
            pass
        assert path.exists()
        assert server.fileno() >= 0


def test_a_socket_that_somebody_else_put_there_is_not_removed_at_the_end(folder: Path) -> None:
    path = folder / "ctl.sock"
    with bound_socket(path):
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"


def test_a_link_in_place_of_the_folder_is_refused(folder: Path) -> None:
    real = folder / "ctl.sock"
    link = folder / "link"
    link.symlink_to("/tmp")
    with pytest.raises(NotOurs), bound_socket(link / "ctl.sock"):
        pass
    assert not real.exists()


def test_the_lock_has_one_holder_and_the_loser_learns_who(tmp_path: Path) -> None:
    lock, first = tmp_path / "lock", this_instance("1.2.3", "127.0.0.1:5413")
    with sole_instance(lock, first):
        second = this_instance("1.2.3", "127.0.0.1:5413")
        with pytest.raises(AlreadyRunning) as caught, sole_instance(lock, second):
            pass
        assert f"pid {os.getpid()}" in str(caught.value)
        assert "127.0.0.1:5413" in str(caught.value)
    with sole_instance(lock, this_instance("1.2.3", "x")):
        pass


def test_a_lock_with_nonsense_in_it_is_still_a_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with sole_instance(lock, this_instance("1", "x")):
        lock.write_text("garbage")
        with (
            pytest.raises(AlreadyRunning, match="another swiftlmd"),
            sole_instance(lock, this_instance("1", "y")),
        ):
            pass


@pytest.mark.parametrize(
    ("host", "shown"),
    [("127.0.0.1", "127.0.0.1:1"), ("::1", "[::1]:1"), ("::", "[::]:1"), ("box", "box:1")],
)
def test_an_address_can_stand_in_a_url(host: str, shown: str) -> None:
    assert address(host, 1) == shown
