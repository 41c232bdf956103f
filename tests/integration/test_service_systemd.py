"""The systemd user unit against a systemctl that behaves like the real one.

Invariants: a changed unit is reloaded before it is started; a start limit once hit is forgotten
when a person asks for a start; codes that a restart cannot mend are not restarted.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes_bin.control import FakeSystemd, Script, eventually

from swiftlm_proto.exit_codes import CtlExit
from swiftlmctl.errors import CtlError
from swiftlmctl.service import Phase
from swiftlmctl.service.job import SOCKET_UNIT, UNIT, Job
from swiftlmctl.service.systemd import SystemdUnit
from swiftlmctl.service.unit import socket_text, unit_text


class Box:
    """One user's Linux machine."""

    def __init__(self, root: Path) -> None:
        self.home = root / "Home & 100% more"
        self.systemd = FakeSystemd(root / "systemd", self.home)
        self.script = Script(root / "script.json")
        self.unit = SystemdUnit(self.home / ".config/systemd/user", run=self.systemd.run)
        self.job = Job(self.script.arguments, self.home, self.home / "logs" / "launchd.log")

    def phase(self) -> Phase:
        return self.unit.state().phase


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path)
    yield made
    made.systemd.close()


def test_installed_unit_starts_and_is_enabled(box: Box) -> None:
    assert len(box.unit.install(box.job)) == 1
    box.unit.start()
    assert eventually(lambda: box.phase() is Phase.RUNNING)
    state = box.unit.state()
    assert (state.enabled, state.exit_timeout_s) == (True, 45)
    assert box.systemd.verbs("daemon-reload", "enable", "start") == [
        "daemon-reload",
        "enable",
        "start",
    ]


def test_unit_that_has_not_said_ready_is_starting(box: Box) -> None:
    box.script.write(exit=[None])
    silent = ("/bin/sleep", "60")
    box.unit.install(Job(silent, box.home, box.job.log))
    box.unit.start()
    assert eventually(lambda: box.unit.state().pid > 0)
    assert box.phase() is Phase.STARTING


def test_second_installation_changes_nothing(box: Box) -> None:
    box.unit.install(box.job)
    assert box.unit.install(box.job) == []
    assert box.systemd.verbs("daemon-reload") == ["daemon-reload"]


def test_changed_unit_is_reloaded(box: Box) -> None:
    box.unit.install(box.job)
    changed = Job(box.job.arguments, box.home, box.job.log, places={"HF_HOME": "/data/hub 1"})
    box.unit.install(changed)
    box.unit.start()
    assert eventually(lambda: box.phase() is Phase.RUNNING)
    assert box.script.environment()["HF_HOME"] == "/data/hub 1"


def test_stop_is_graceful(box: Box) -> None:
    box.script.write(term_s=0.1)
    box.unit.install(box.job)
    box.unit.start()
    assert eventually(lambda: box.phase() is Phase.RUNNING)
    box.unit.stop()
    assert box.script.events() == ["start", "SIGTERM", "end"]
    assert box.phase() is Phase.STOPPED


@pytest.mark.parametrize("times", [7, pytest.param(50, marks=pytest.mark.slow)])
def test_forced_restart_always_comes_back(box: Box, times: int) -> None:
    """Also more often than systemd lets a unit start in a while."""
    box.script.write(deaf=True)
    box.unit.install(box.job)
    box.unit.start()
    for count in range(times):
        assert eventually(lambda done=count: box.script.events() == ["start"] * (done + 1))
        assert eventually(lambda: box.phase() is Phase.RUNNING)
        before = box.unit.state().pid
        box.unit.restart(force=True)
        assert eventually(lambda old=before: box.unit.state().pid not in (0, old))
    box.unit.stop(force=True)
    assert eventually(lambda: box.phase() in (Phase.STOPPED, Phase.FAILED))


def test_crash_is_restarted(box: Box) -> None:
    box.script.write(exit=[70])
    box.unit.install(box.job)
    box.unit.start()
    assert eventually(lambda: box.script.events() == ["start", "start"])


@pytest.mark.parametrize("code", [69, 77, 78])
def test_what_a_restart_cannot_mend_is_left_down(box: Box, code: int) -> None:
    box.script.write(exit=[code])
    box.unit.install(box.job)
    box.unit.start()
    assert eventually(lambda: box.phase() is Phase.FAILED)
    assert box.unit.state().last_exit == str(code)
    assert not eventually(lambda: box.script.events().count("start") > 1, seconds=0.8)


def test_start_limit_is_forgotten_when_a_person_starts(box: Box) -> None:
    box.script.write(exit=[1] * 5)
    box.systemd.environ["FAKE_SYSTEMD_SPEED"] = "100"
    box.unit.install(box.job)
    box.unit.start()
    assert eventually(lambda: "start-limit-hit" in box.unit.state().detail)
    box.unit.start()
    assert eventually(lambda: box.phase() is Phase.RUNNING)


def test_disable_stops_and_keeps_it_from_login(box: Box) -> None:
    box.unit.install(box.job)
    box.unit.start()
    box.unit.disable()
    state = box.unit.state()
    assert (state.phase, state.enabled) == (Phase.STOPPED, False)


def test_uninstall_removes_the_unit_and_its_link(box: Box) -> None:
    box.unit.install(box.job)
    box.unit.start()
    assert len(box.unit.uninstall()) == 1
    assert box.phase() is Phase.NOT_INSTALLED
    assert not list(box.home.rglob("*.service"))
    assert box.unit.uninstall() == []


def test_uninstall_stops_a_daemon_whose_unit_somebody_deleted(box: Box) -> None:
    box.unit.install(box.job)
    box.unit.start()
    assert eventually(lambda: box.unit.state().pid > 0)
    definition = box.unit.state().definition
    assert definition is not None
    definition.unlink()
    box.unit.uninstall()
    assert box.unit.state().pid == 0


def test_socket_unit_comes_and_goes_with_the_option(box: Box) -> None:
    path = box.home / ".config/systemd/user/swiftlmd.socket"
    held = Job(box.job.arguments, box.home, box.job.log, control_socket=box.home / "ctl.sock")
    assert box.unit.install(held) == [path.with_name(UNIT), path]
    assert "FileDescriptorName=control" in path.read_text()
    assert box.unit.install(held) == []
    box.unit.install(box.job)
    assert not path.exists()


def test_verbs_before_installation_say_so(box: Box) -> None:
    for verb in (box.unit.start, box.unit.stop, box.unit.enable, box.unit.disable):
        with pytest.raises(CtlError, match="not installed") as caught:
            verb()
        assert caught.value.code is CtlExit.NOT_INSTALLED


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
def test_systemd_itself_accepts_the_unit(box: Box, tmp_path: Path) -> None:
    place, beside = tmp_path / UNIT, tmp_path / SOCKET_UNIT
    place.write_text(unit_text(box.job))
    held = Job(box.job.arguments, box.home, box.job.log, control_socket=box.home / "ctl.sock")
    beside.write_text(socket_text(held))
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(place), str(beside)],
        env={"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(box.home)},
        capture_output=True,
        text=True,
        check=False,
    )
    # It exits with 0 on unknown keys, and only mentions them.
    assert (done.returncode, done.stderr) == (0, "")
