"""The local network on a Mac: what macOS forbids a service, and which names are a machine's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from swiftlm_engine.cluster.transport import LocalNetworkDenied, Unreachable, reaching
from swiftlm_proto import messages as m
from swiftlm_proto.paths import under
from swiftlmd.hosts.checks import Examiner
from swiftlmd.hosts.registry import Host
from swiftlmd.http import certificates
from swiftlmd.http.certificates import own_names

STUDIO = Host("studio", 1, "10.0.0.2:5415")


def no_route(*_: object) -> socket.socket:
    raise OSError(65, "No route to host")


@pytest.mark.parametrize(
    ("platform", "kind"),
    [("darwin", m.HostProblemKind.PRIVACY), ("linux", m.HostProblemKind.UNREACHABLE)],
)
def test_no_route_from_a_mac_names_the_setting_and_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, kind: m.HostProblemKind
) -> None:
    monkeypatch.setattr(socket, "create_connection", no_route)
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(Unreachable) as caught, reaching(STUDIO.agent, 1.0):
        pass
    assert isinstance(caught.value, LocalNetworkDenied) == (platform == "darwin")
    examiner = Examiner(under(tmp_path), SimpleNamespace())  # type: ignore[arg-type]
    problem = examiner._lost(STUDIO, caught.value)
    assert problem.kind is kind
    if platform == "darwin":
        assert "Privacy & Security, Local Network" in problem.fix
        assert os.path.realpath(sys.executable) in problem.fix


def test_another_failure_on_a_mac_is_not_taken_for_privacy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> socket.socket:
        raise ConnectionRefusedError(61, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", refused)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(Unreachable) as caught, reaching(STUDIO.agent, 1.0):
        pass
    assert not isinstance(caught.value, LocalNetworkDenied)


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(socket, "gethostname", lambda: "dhcp-17.corp.example")
    certificates._local_host_name.cache_clear()
    yield
    certificates._local_host_name.cache_clear()


@pytest.mark.usefixtures("mac")
def test_the_name_of_a_mac_is_the_one_that_bonjour_announces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def scutil(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command == ["/usr/sbin/scutil", "--get", "LocalHostName"]
        return subprocess.CompletedProcess(command, 0, "Annas-MacBook\n", "")

    monkeypatch.setattr(subprocess, "run", scutil)
    assert own_names().hosts == ("annas-macbook.local", "localhost")


@pytest.mark.usefixtures("mac")
def test_a_mac_without_that_name_falls_back_to_its_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", missing)
    assert own_names().hosts == ("dhcp-17.local", "localhost")


def test_addresses_that_rotate_ask_for_no_new_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    def addresses(last: str) -> dict[str, list[SimpleNamespace]]:
        return {
            "en0": [SimpleNamespace(family=socket.AF_INET, address="192.168.1.20")],
            "awdl0": [SimpleNamespace(family=socket.AF_INET6, address=f"fe80::{last}%awdl0")],
        }

    found = []
    for last in ("1", "2"):
        monkeypatch.setattr(psutil, "net_if_addrs", lambda last=last: addresses(last))
        found.append(own_names())
    assert found[0] == found[1]
    assert found[0].addresses == ("192.168.1.20",)
