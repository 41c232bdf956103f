"""`swiftlmctl start`, `stop`, `service …` as programs, on machines made of fakes."""

from __future__ import annotations

import json
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


def test_start_of_a_sick_daemon_shows_its_last_words(mac: InstallBox) -> None:
    mac.write_plan(sick=["0.1.0"])
    failed = mac.ctl("start")
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
