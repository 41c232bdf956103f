"""The admin socket from a supervisor: who hands it over, and when it is not for us."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from swiftlmd.lifecycle import activation
from swiftlmd.lifecycle.activation import inherited_socket


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "s"))
        made.listen()
        yield made


def from_systemd(**changes: str) -> dict[str, str]:
    mine = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2", "LISTEN_FDNAMES": "web:control"}
    return {**mine, **changes}


def test_systemd_names_the_descriptor(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activation, "_FIRST", os.dup(listening.fileno()) - 1)
    environ = from_systemd()
    with inherited_socket(environ) as found:
        assert found.getsockname() == listening.getsockname()
        assert not found.get_inheritable()
    assert environ == {}  # a child would believe they are meant for it


@pytest.mark.parametrize(
    "changes",
    [
        {"LISTEN_PID": "1"},
        {"LISTEN_FDNAMES": "web:other"},
        {"LISTEN_FDS": "x"},
        {"LISTEN_FDS": "1"},
        {"LISTEN_FDS": "²"},
    ],
)
def test_what_is_not_for_us_is_left(changes: dict[str, str]) -> None:
    assert inherited_socket(from_systemd(**changes)) is None


@pytest.mark.parametrize("is_open", [False, True])
def test_a_descriptor_that_is_no_socket_keeps_no_daemon_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    with (tmp_path / "file").open("w") as file:
        number = file.fileno() if is_open else 1 << 20
        monkeypatch.setattr(activation, "_FIRST", number - 1)
        assert inherited_socket(from_systemd()) is None


def test_launchd_is_asked_only_in_its_job(listening: socket.socket) -> None:
    asked = []

    def ask(name: str) -> list[int]:
        asked.append(name)
        return [os.dup(listening.fileno())]

    assert inherited_socket({}, ask_launchd=ask) is None
    job = {"XPC_SERVICE_NAME": "io.github.swiftlm.swiftlmd"}
    with inherited_socket(job, ask_launchd=ask) as found:
        assert found.getsockname() == listening.getsockname()
    assert asked == ["control"]


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ESRCH, errno.ENOSYS])
def test_job_without_a_socket_opens_its_own(code: int) -> None:
    def ask(name: str) -> list[int]:
        raise OSError(code, os.strerror(code))

    assert inherited_socket({"XPC_SERVICE_NAME": "x.swiftlmd"}, ask_launchd=ask) is None


def test_second_request_is_an_error_and_not_a_second_socket() -> None:
    def ask(name: str) -> list[int]:
        raise OSError(errno.EALREADY, "already")

    with pytest.raises(OSError, match="already"):
        inherited_socket({"XPC_SERVICE_NAME": "x.swiftlmd"}, ask_launchd=ask)
