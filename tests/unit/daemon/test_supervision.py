"""Under a supervisor: who started us, what we tell it, when we stay down."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import FakeClock, settle

from swiftlm_proto.exit_codes import DaemonExit
from swiftlmd.admin.self_check import _configuration
from swiftlmd.lifecycle.instance import NoAddress, bind_port
from swiftlmd.lifecycle.power import ChildAssertion, SleepGuard, WakeWatch, find_assertion
from swiftlmd.lifecycle.start_limiter import StartLimiter
from swiftlmd.lifecycle.supervisor import Notifier, Supervisor, find_supervisor, leave_with
from swiftlmd.main import _exit_code


class Date:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_five_starts_without_health_in_ten_minutes_trip_the_breaker(tmp_path: Path) -> None:
    date = Date()
    breaker = StartLimiter(tmp_path / "starts.json", date)
    for _ in range(5):
        assert breaker.start()
        date.now += 20
    assert not breaker.start()
    assert breaker.start()  # whoever starts it next gets a whole budget


def test_starts_that_went_well_or_lie_long_back_do_not_count(tmp_path: Path) -> None:
    date = Date()
    breaker = StartLimiter(tmp_path / "starts.json", date)
    for _ in range(20):
        assert breaker.start()
        breaker.clear()
    for _ in range(20):
        assert breaker.start()
        date.now += 200


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0, 2 * 86400.0])
def test_a_clock_that_jumps_does_not_trip_the_breaker(tmp_path: Path, jump_s: float) -> None:
    date = Date()
    breaker = StartLimiter(tmp_path / "starts.json", date)
    for _ in range(4):
        assert breaker.start()
    date.now += jump_s
    assert breaker.start()
    assert breaker.start()


@pytest.mark.parametrize("text", ["", "{", '{"a": 1}', '["x"]', "17"])
def test_a_broken_record_of_starts_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "starts.json").write_text(text)
    assert StartLimiter(tmp_path / "starts.json", Date()).start()


def test_a_start_that_failed_for_what_may_pass_does_not_count(tmp_path: Path) -> None:
    breaker = StartLimiter(tmp_path / "starts.json", Date())
    for _ in range(20):
        assert breaker.start()
        breaker.take_back()


def test_the_reason_of_the_last_failed_start_is_kept(tmp_path: Path) -> None:
    breaker = StartLimiter(tmp_path / "starts.json", Date())
    for _ in range(5):
        assert breaker.start()
        breaker.failed("the disk is gone")
    assert breaker.last_failure == "the disk is gone"
    assert not breaker.start()


def test_an_address_that_is_not_there_is_named_and_may_come() -> None:
    for host in ("203.0.113.7", "no-such-host.invalid"):
        with pytest.raises(NoAddress, match=rf"{host} \(http.host\)") as caught:
            bind_port(host, 0)
        assert _exit_code(caught.value) is DaemonExit.TEMPORARY


def test_a_name_of_both_families_is_bound_where_clients_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def both(*_: object, **__: object) -> list[object]:
        kind = socket.SOCK_STREAM
        return [
            (socket.AF_INET6, kind, 6, "", ("::1", 0, 0, 0)),
            (socket.AF_INET, kind, 6, "", ("127.0.0.1", 0)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    with bind_port("localhost", 0) as server:
        assert server.getsockname()[0] == "127.0.0.1"


def test_the_installers_check_refuses_what_the_daemon_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("SWIFTLM_")]:
        monkeypatch.delenv(name)
    paths = SimpleNamespace(config_file=tmp_path / "config.toml")
    paths.config_file.write_text('[http]\nhost = "0.0.0.0"\n')
    assert _configuration(paths).code is DaemonExit.BAD_CONFIG
    paths.config_file.write_text("")
    assert _configuration(paths).code is DaemonExit.STAY_DOWN


def test_supervisors_are_told_apart_and_a_terminal_is_none() -> None:
    launchd = {"XPC_SERVICE_NAME": "io.github.swiftlm.swiftlmd"}
    assert find_supervisor(launchd) is Supervisor.LAUNCHD
    assert find_supervisor({"XPC_SERVICE_NAME": "0"}) is Supervisor.NONE
    terminal = {"XPC_SERVICE_NAME": "application.com.apple.Terminal.1152921500311879701"}
    assert find_supervisor(terminal) is Supervisor.NONE
    assert find_supervisor({"NOTIFY_SOCKET": "/run/x"}) is Supervisor.SYSTEMD
    assert find_supervisor({"SYSTEMD_EXEC_PID": str(os.getpid())}) is Supervisor.SYSTEMD
    assert find_supervisor({"SYSTEMD_EXEC_PID": "1"}) is Supervisor.NONE


@pytest.mark.parametrize(
    ("code", "supervisor", "left_with", "recorded"),
    [
        (DaemonExit.BAD_CONFIG, Supervisor.LAUNCHD, 0, True),
        (DaemonExit.NO_DEVICE, Supervisor.LAUNCHD, 0, True),
        (DaemonExit.NOT_PERMITTED, Supervisor.LAUNCHD, 0, True),
        (DaemonExit.TEMPORARY, Supervisor.LAUNCHD, 75, False),
        (DaemonExit.CRASH, Supervisor.LAUNCHD, 1, False),
        (DaemonExit.BAD_CONFIG, Supervisor.SYSTEMD, 78, False),
        (DaemonExit.NOT_PERMITTED, Supervisor.NONE, 77, False),
    ],
)
def test_only_launchd_is_told_zero_for_what_a_restart_cannot_mend(
    tmp_path: Path, code: DaemonExit, supervisor: Supervisor, left_with: int, recorded: bool
) -> None:
    fatal = tmp_path / "fatal.json"
    assert leave_with(code, "the reason", supervisor, fatal) == left_with
    assert fatal.exists() == recorded
    if recorded:
        assert json.loads(fatal.read_text())["reason"] == "the reason"


def test_systemd_is_told_ready_and_stopping(tmp_path: Path) -> None:
    address = str(tmp_path / "n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(2)
        notifier = Notifier({"NOTIFY_SOCKET": address})
        notifier.ready("on 127.0.0.1:5413")
        assert manager.recv(200) == b"READY=1\nSTATUS=on 127.0.0.1:5413"
        notifier.stopping()
        assert manager.recv(200).startswith(b"STOPPING=1")


def test_nobody_to_notify_is_no_failure(tmp_path: Path) -> None:
    Notifier({}).ready("x")
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("x")


class FakeAssertion:
    def __init__(self) -> None:
        self.log: list[str] = []

    async def take(self) -> None:
        self.log.append("take")

    async def release(self) -> None:
        self.log.append("release")

    lost = False


async def test_sleep_is_held_off_while_requests_run_and_for_half_a_minute_after() -> None:
    clock, assertion, busy = FakeClock(), FakeAssertion(), [False]
    guard = SleepGuard(clock, assertion, wanted=lambda: True, busy=lambda: busy[0])
    task = asyncio.create_task(guard.run())
    await clock.advance(5)
    assert assertion.log == []
    busy[0] = True
    await clock.advance(100)
    assert assertion.log == ["take"]
    busy[0] = False
    await clock.advance(25)
    assert guard.held
    await clock.advance(10)
    assert assertion.log == ["take", "release"]
    task.cancel()
    await settle()


async def test_what_holds_sleep_off_is_started_again_when_somebody_ends_it() -> None:
    guard = SleepGuard(
        FakeClock(), ChildAssertion(["sleep", "60"]), wanted=lambda: True, busy=lambda: True
    )
    await guard._hold(True)
    first = guard._assertion._child  # type: ignore[attr-defined]
    first.kill()
    await first.wait()
    await guard._hold(True)
    second = guard._assertion._child  # type: ignore[attr-defined]
    assert second.pid != first.pid
    assert second.returncode is None
    await guard._hold(True)
    assert guard._assertion._child is second  # type: ignore[attr-defined]
    await guard._hold(False)
    assert second.returncode is not None


async def test_sleep_is_never_held_off_unless_asked_to() -> None:
    clock, assertion = FakeClock(), FakeAssertion()
    guard = SleepGuard(clock, assertion, wanted=lambda: False, busy=lambda: True)
    task = asyncio.create_task(guard.run())
    await clock.advance(60)
    assert assertion.log == []
    task.cancel()
    await settle()


async def test_waking_is_noticed_once_and_a_change_of_the_date_is_not_waking() -> None:
    clock, slept, woken = FakeClock(), [0.0], []
    watch = WakeWatch(clock, lambda: clock.now() + slept[0], woken.append)
    task = asyncio.create_task(watch.run())
    await clock.advance(30)
    clock.jump_date(3600)
    await clock.advance(30)
    clock.jump_date(-3600)
    await clock.advance(30)
    assert woken == []
    slept[0] += 8 * 3600
    await clock.advance(30)
    assert woken == [8 * 3600]
    task.cancel()
    await settle()


def test_macos_is_kept_awake_by_a_child_that_ends_with_us_and_leaves_the_display_alone() -> None:
    command = find_assertion("darwin", 4711)._command
    assert command == ["/usr/bin/caffeinate", "-i", "-w", "4711"]
