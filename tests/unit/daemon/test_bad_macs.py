"""Macs that nobody wishes for: each gets a clear sentence, or works as well as it can."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import psutil
import pytest
from model_headers import Quant, decoder, write_model
from planned_models import DENSE_8B

from swiftlm_engine.brain.facts import read_model
from swiftlm_engine.brain.plan import (
    Accelerator,
    MachineLimits,
    PlanRequest,
    Toggle,
    make_plan,
    prior_speed,
)
from swiftlmd.admin import local_network
from swiftlmd.lifecycle.instance import PortBusy, bind_port

ROUTE = "   route to: default\n    gateway: 192.168.1.1\n  interface: en0\n"


@pytest.mark.parametrize(
    ("route", "code", "status", "words"),
    [
        (ROUTE, errno.EHOSTUNREACH, "warn", "macOS forbids the service to reach 192.168.1.1"),
        (ROUTE, 0, "pass", "answers"),
        (ROUTE, errno.ECONNREFUSED, "pass", "answers"),
        (ROUTE, errno.ETIMEDOUT, "pass", "not forbidden"),
        ("", 0, "pass", "no network"),
    ],
)
def test_the_local_network_as_the_service_sees_it(
    route: str, code: int, status: str, words: str
) -> None:
    check = local_network.check(lambda: route, lambda host: code)
    assert (check.status, words in check.reason) == (status, True), check.reason
    assert ("Local Network" in check.fix) == (status == "warn")


def test_a_refused_connection_is_told_by_its_number() -> None:
    assert local_network._connect("127.0.0.1") in (0, errno.ECONNREFUSED)


def test_two_users_with_the_service_are_told_of_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second user's daemon finds the port held by a process that it may not look into."""
    monkeypatch.setattr(psutil, "process_iter", lambda wanted: [])
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortBusy) as refused:
            bind_port("127.0.0.1", port)
    assert f"127.0.0.1:{port} is taken by a process of another user" in str(refused.value)
    assert "config set http.port" in str(refused.value)


def test_nine_gigabytes_on_a_mac_of_eight_are_streamed_or_refused_with_what_would_help(
    tmp_path: Path,
) -> None:
    model = read_model(write_model(tmp_path, DENSE_8B, decoder(DENSE_8B, Quant(8))))
    assert model.weights.resident_bytes() > 8.5e9
    limits = MachineLimits(
        accelerator=Accelerator.METAL,
        device_name="Apple M1",
        ram_bytes=8 * 2**30,
        working_set_bytes=5_726_633_984,
        reclaimable_bytes=5 * 10**9,
    )
    plan = make_plan(model, PlanRequest(), limits)
    assert plan.summary.startswith("streamed, needs 3.8 GB of 3.9 GB")
    assert "32 of 32 layers are read from disk for each token" in plan.summary
    held = make_plan(model, PlanRequest(stream=Toggle.OFF), limits)
    assert held.refused
    assert "GB" in held.summary
    assert held.fixes


@pytest.mark.parametrize(
    ("unknown", "known"), [("Apple M12 Ultra", "Apple M3 Ultra"), ("Apple M7 Max", "Apple M5 Max")]
)
def test_a_chip_nobody_has_heard_of_is_the_newest_of_its_size(unknown: str, known: str) -> None:
    assert prior_speed(unknown, "metal") == prior_speed(known, "metal")


@pytest.mark.parametrize("name", ["Apple X1", "", "Apple M12 Hyper"])
def test_a_name_that_says_nothing_gives_a_careful_guess(name: str) -> None:
    speed = prior_speed(name, "metal")
    assert 0 < speed.memory_bytes_s.low <= prior_speed("Apple M1 Max", "metal").memory_bytes_s.low
