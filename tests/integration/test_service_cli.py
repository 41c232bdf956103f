"""`swiftlmctl start`, `stop`, `service …` as programs, on machines made of fakes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest
from fakes_bin.install_box import InstallBox


@pytest.fixture
def mac() -> Iterator[InstallBox]:
    box = InstallBox("launchd")
    box.install("--no-start")
    yield box
    box.close()


def test_life_of_a_service(mac: InstallBox) -> None:
    assert mac.ctl("status").returncode == 3
    started = mac.ctl("start")
    assert (started.returncode, "is ready at" in started.stdout) == (0, True), started.stderr
    service = json.loads(mac.ctl("service", "status", "--json").stdout)
    assert (service["phase"], service["enabled"], service["exit_timeout_s"]) == (
        "running",
        True,
        45,
    )
    assert mac.ctl("stop").returncode == 0
    assert mac.ctl("service", "status").returncode == 3
    assert mac.ctl("restart").returncode == 0  # also from standstill
    assert mac.ctl("service", "uninstall").returncode == 0
    absent = mac.ctl("status")
    assert (absent.returncode, "service install" in absent.stdout) == (4, True)


@pytest.mark.parametrize("kind", ["launchd", "none"])
def test_start_during_a_drain_waits_for_it_and_then_a_new_daemon_serves(kind: str) -> None:
    box = InstallBox(kind)
    try:
        box.write_plan(drain_s=1.5)
        box.install("--no-start")
        assert box.ctl("start").returncode == 0
        old = json.loads(box.ctl("status", "--json").stdout)["pid"]
        os.kill(old, signal.SIGTERM)  # as `stop` in another terminal
        started = box.ctl("start")
        assert started.returncode == 0, started.stderr
        status = json.loads(box.ctl("status", "--json").stdout)
        assert (status["state"], status["pid"] != old) == ("ready", True)
        assert f"pid {status['pid']}" in started.stdout
    finally:
        box.close()


def test_start_says_so_when_the_old_daemon_never_leaves() -> None:
    box = InstallBox("none")
    try:
        box.write_plan(drain_s=600, patience_s=1)
        box.install("--no-start")
        assert box.ctl("start").returncode == 0
        pid = json.loads(box.ctl("status", "--json").stdout)["pid"]
        assert box.ctl("stop").returncode == 5
        started = box.ctl("start")
        assert (started.returncode, "stop --force" in started.stderr) == (5, True)
        assert str(pid) in started.stderr
        assert box.ctl("stop", "--force").returncode == 0
        assert box.ctl("status").returncode == 3
    finally:
        box.close()


def test_start_of_a_sick_daemon_shows_its_last_words(mac: InstallBox) -> None:
    mac.write_plan(sick=["0.1.0"])
    failed = mac.ctl("start", "--wait", "150")  # a busy machine takes long to crash thrice
    assert failed.returncode == 1
    assert "| this release is sick" in failed.stderr


def test_start_clears_the_record_of_a_daemon_that_gave_up(mac: InstallBox) -> None:
    fatal = mac.app / "state" / "fatal.json"
    fatal.write_text('{"reason": "no device"}')
    status = mac.ctl("status")
    assert (status.returncode, "gave up: no device" in status.stdout) == (1, True)
    assert mac.ctl("start").returncode == 0
    assert not fatal.exists()


def test_doctor_sees_a_job_that_somebody_edited(mac: InstallBox) -> None:
    plist = next(mac.home.rglob("*.plist"))
    plist.write_bytes(plist.read_bytes().replace(b"Interactive", b"Background"))
    checks = json.loads(mac.ctl("doctor", "--json").stdout)["checks"]
    found = next(check for check in checks if check["name"] == "job definition")
    assert (found["status"], found["fix"]) == ("warn", "`swiftlmctl service install`")
    assert mac.ctl("service", "install", "--no-start").returncode == 0
    checks = json.loads(mac.ctl("doctor", "--json").stdout)["checks"]
    assert next(c for c in checks if c["name"] == "job definition")["status"] == "pass"
