"""The launchd agent against a launchctl that behaves like the real one: timelines with faults.

Invariants, whatever launchd answers: one daemon at most; `enable` before `bootstrap` before
`kickstart`; nothing started outside launchd; every failure says what launchd said.
"""

from __future__ import annotations

import contextlib
import plistlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes_bin.control import FakeLaunchd, Script, eventually

from swiftlm_proto.exit_codes import CtlExit
from swiftlmctl.errors import CtlError
from swiftlmctl.service import Phase
from swiftlmctl.service.job import LABEL, Job
from swiftlmctl.service.launchctl import Launchctl
from swiftlmctl.service.launchd import LaunchdAgent

GUI = f"gui/501/{LABEL}"


class FastClock:
    """Real waiting, a twentieth as long: the fake's times are shortened the same way."""

    def monotonic(self) -> float:
        return time.monotonic() * 20

    def sleep(self, seconds: float, /) -> None:
        time.sleep(seconds / 20)


class Mac:
    """One user's Mac: a home, a launchd, a job and the agent under test."""

    def __init__(self, root: Path) -> None:
        self.home = root / "Home & more"
        self.launchd = FakeLaunchd(root / "launchd", self.home)
        self.script = Script(root / "script.json")
        self.logs = self.home / "Library" / "Logs" / "swiftlm"
        self.job = self.make_job()

    def make_job(self, **changes: object) -> Job:
        fields = {
            "arguments": self.script.arguments,
            "app": self.home,
            "log": self.logs / "launchd.log",
        }
        return Job(**{**fields, **changes})

    def agent(self) -> LaunchdAgent:
        """A new one for each command, as the CLI makes it."""
        launchctl = Launchctl(self.launchd.run, program="launchctl")
        return LaunchdAgent(
            self.home, self.logs, launchctl=launchctl, clock=FastClock(), uid=FakeLaunchd.uid
        )

    def installed(self) -> LaunchdAgent:
        self.agent().install(self.job)
        return self.agent()


@pytest.fixture
def mac(tmp_path: Path) -> Iterator[Mac]:
    made = Mac(tmp_path)
    yield made
    made.launchd.close()


def test_first_start_enables_then_bootstraps_then_kickstarts(mac: Mac) -> None:
    mac.installed().start()
    order = ["enable", "bootstrap", "kickstart"]
    assert mac.launchd.verbs(*order) == order
    state = mac.agent().state()
    assert (state.phase, state.domain, state.enabled) == (Phase.RUNNING, "gui/501", True)
    assert state.exit_timeout_s == 45
    assert state.pid > 1  # the nested decoy says 1


def test_job_gets_only_the_environment_that_launchd_gives(mac: Mac) -> None:
    mac.installed().start()
    assert eventually(lambda: "start" in mac.script.events())
    found = mac.script.environment()
    assert found["SWIFTLM_HOME"] == str(mac.home)
    assert found["XPC_SERVICE_NAME"] == LABEL
    # Homebrew's programs are on the plist's PATH, not on launchd's own.
    assert "/opt/homebrew/bin" in found["PATH"].split(":")
    assert "FAKE_LAUNCHD_DIR" not in found


def test_installing_twice_writes_once(mac: Mac) -> None:
    assert len(mac.agent().install(mac.job)) == 1
    assert mac.agent().install(mac.job) == []


def test_second_start_leaves_the_running_daemon_alone(mac: Mac) -> None:
    mac.installed().start()
    pid = mac.agent().state().pid
    mac.agent().start()
    assert mac.agent().state().pid == pid
    assert eventually(lambda: mac.script.events() == ["start"])


def test_changed_job_replaces_the_loaded_one(mac: Mac) -> None:
    mac.script.write(term_s=0.2)
    mac.installed().start()
    assert eventually(lambda: "start" in mac.script.events())
    changed = mac.make_job(places={"HF_HOME": "/Volumes/hub"})
    assert mac.agent().install(changed)
    mac.agent().start()
    assert eventually(lambda: mac.script.events() == ["start", "SIGTERM", "end", "start"])
    assert mac.script.environment()["HF_HOME"] == "/Volumes/hub"


def test_disabled_label_is_enabled_first(mac: Mac) -> None:
    mac.launchd.put("disabled", {"gui/501": {LABEL: True}})
    mac.installed().start()
    assert mac.agent().state().phase is Phase.RUNNING


@pytest.mark.parametrize("code", [5, 17, 36, 37, 119])
def test_passing_refusal_of_bootstrap_is_tried_again(mac: Mac, code: int) -> None:
    mac.launchd.put("faults", {"bootstrap": [code, code, 0]})
    mac.installed().start()
    assert mac.launchd.verbs("bootstrap") == ["bootstrap"] * 3
    assert mac.agent().state().phase is Phase.RUNNING


def test_lasting_refusal_is_told_in_launchds_words(mac: Mac) -> None:
    mac.launchd.put("faults", {"bootstrap": [5] * 20})
    agent = mac.installed()
    with pytest.raises(CtlError, match="Bootstrap failed: 5: Input/output error") as caught:
        agent.start()
    assert "plutil -lint" in caught.value.hint
    assert mac.script.events() == []  # above all, no daemon outside launchd


def test_start_waits_for_a_draining_job_to_be_gone(mac: Mac) -> None:
    mac.script.write(term_s=1.0)
    mac.installed().start()
    assert eventually(lambda: "start" in mac.script.events())
    mac.launchd.run(["launchctl", "bootout", GUI])  # returns at once, the job stays a while
    assert mac.agent().state().phase is Phase.STOPPING
    mac.agent().start()
    assert eventually(lambda: mac.script.events() == ["start", "SIGTERM", "end", "start"])


def test_over_ssh_without_a_screen_the_user_domain_is_taken(mac: Mac) -> None:
    mac.launchd.session("user", manager="Background")
    mac.installed().start()
    assert mac.agent().state().domain == "user/501"


def test_over_ssh_with_a_screen_session_gui_is_taken(mac: Mac) -> None:
    mac.launchd.session("gui", "user", manager="Background")
    assert mac.agent().domain == "gui/501"


def test_job_loaded_over_ssh_stays_where_it_is(mac: Mac) -> None:
    mac.launchd.session("user", manager="Background")
    mac.installed().start()
    mac.launchd.session("gui", "user", manager="Aqua")  # now somebody logs in at the screen
    assert mac.agent().state().domain == "user/501"
    mac.agent().restart()
    assert mac.launchd.verbs("bootstrap") == ["bootstrap"]


def test_no_session_at_all_is_said(mac: Mac) -> None:
    mac.launchd.session(manager="System")
    with pytest.raises(CtlError, match="112") as caught:
        mac.installed().start()
    assert "log in" in caught.value.hint


def test_job_that_sits_unstarted_after_bootstrap_is_kicked(mac: Mac) -> None:
    mac.launchd.put("modes", ["no-spawn-until-kickstart"])
    mac.installed().start()
    assert mac.agent().state().phase is Phase.RUNNING


def test_missing_log_folder_is_made_before_bootstrap(mac: Mac) -> None:
    agent = mac.installed()
    mac.logs.rmdir()
    agent.start()
    assert (mac.logs / "launchd.log").exists()


def test_log_that_cannot_be_opened_is_explained(mac: Mac) -> None:
    mac.logs.mkdir(parents=True)
    (mac.logs / "launchd.log").mkdir()  # what launchd cannot open, it dies of without a word
    with pytest.raises(CtlError, match="78: EX_CONFIG") as caught:
        mac.installed().start()
    assert "writable folder on the start-up disk" in caught.value.hint


def test_stop_asks_politely_and_the_job_stays_loaded(mac: Mac) -> None:
    mac.script.write(term_s=0.1)
    mac.installed().start()
    assert eventually(lambda: "start" in mac.script.events())
    mac.agent().stop()
    assert mac.script.events() == ["start", "SIGTERM", "end"]
    state = mac.agent().state()
    assert (state.phase, state.last_exit, state.enabled) == (Phase.STOPPED, "0", True)


def test_stopped_job_stays_down(mac: Mac) -> None:
    mac.installed().start()
    assert eventually(lambda: "start" in mac.script.events())
    mac.agent().stop()
    # Its throttle of 10 s is over after half a second here.
    assert not eventually(lambda: mac.script.events().count("start") > 1, seconds=0.8)


@pytest.mark.parametrize("code", [1, 134, 143])
def test_a_job_that_does_not_end_well_stays_down_too(mac: Mac, code: int) -> None:
    mac.script.write(term_exit=code)
    mac.installed().start()
    assert eventually(lambda: "start" in mac.script.events())
    mac.agent().stop()
    assert not eventually(lambda: mac.script.events().count("start") > 1, seconds=0.8)
    assert mac.agent().state().phase is Phase.STOPPED
    mac.agent().start()
    assert eventually(lambda: mac.script.events().count("start") == 2)


def test_a_crash_loop_is_stopped(mac: Mac) -> None:
    mac.script.write(exit=1)
    with contextlib.suppress(CtlError):
        mac.installed().start()
    mac.agent().stop()
    starts = mac.script.events().count("start")
    assert not eventually(lambda: mac.script.events().count("start") > starts, seconds=0.8)


def test_forced_stop_kills_and_it_stays_down(mac: Mac) -> None:
    mac.script.write(deaf=True)
    mac.installed().start()
    assert eventually(lambda: "start" in mac.script.events())
    mac.agent().stop(force=True)
    assert not eventually(lambda: mac.script.events().count("start") > 1, seconds=0.8)
    assert mac.agent().state().pid == 0


def test_restart_is_graceful_and_never_kills(mac: Mac) -> None:
    mac.script.write(term_s=0.1)
    mac.installed().start()
    assert eventually(lambda: "start" in mac.script.events())
    mac.agent().restart()
    assert eventually(lambda: mac.script.events() == ["start", "SIGTERM", "end", "start"])
    assert ["kickstart", "-k", GUI] not in mac.launchd.calls()


def test_forced_restart_kills(mac: Mac) -> None:
    mac.script.write(deaf=True)
    mac.installed().start()
    assert eventually(lambda: "start" in mac.script.events())
    mac.agent().restart(force=True)
    assert eventually(lambda: mac.script.events() == ["start", "start"])


@pytest.mark.parametrize("times", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_forced_restart_always_comes_back(mac: Mac, times: int) -> None:
    mac.script.write(deaf=True)
    mac.installed().start()
    for count in range(times):
        assert eventually(lambda done=count: mac.script.events() == ["start"] * (done + 1))
        before = mac.agent().state().pid
        mac.agent().restart(force=True)
        assert eventually(lambda old=before: mac.agent().state().pid not in (0, old))
        assert mac.agent().state().phase is Phase.RUNNING
    mac.agent().stop(force=True)
    assert mac.agent().state().pid == 0


def test_deaf_daemon_is_reported_after_the_exit_timeout(mac: Mac) -> None:
    mac.script.write(deaf=True)
    agent = mac.installed()
    agent.start()
    assert eventually(lambda: "start" in mac.script.events())
    with pytest.raises(CtlError, match="has not left") as caught:
        mac.agent().stop()
    assert caught.value.code is CtlExit.TIMEOUT
    assert "--force" in caught.value.hint


def test_crash_is_restarted_by_launchd_and_success_is_not(mac: Mac) -> None:
    mac.script.write(exit=[3, 0])
    mac.installed().start()
    assert eventually(lambda: mac.script.events() == ["start", "start"])
    assert eventually(lambda: mac.agent().state().last_exit == "0")
    assert mac.agent().state().phase is Phase.STOPPED


def test_crash_loop_shows_as_failed(mac: Mac) -> None:
    mac.script.write(exit=1)
    with contextlib.suppress(CtlError):  # whether it was seen alive is luck
        mac.installed().start()
    assert eventually(lambda: mac.agent().state().runs > 1)
    assert eventually(lambda: mac.agent().state().phase is Phase.FAILED)
    assert mac.agent().state().last_exit == "1"


def test_disable_survives_and_start_mends_it(mac: Mac) -> None:
    mac.installed().start()
    mac.agent().disable()
    state = mac.agent().state()
    assert (state.phase, state.enabled) == (Phase.STOPPED, False)
    mac.agent().start()
    state = mac.agent().state()
    assert (state.phase, state.enabled) == (Phase.RUNNING, True)


def test_uninstall_leaves_neither_job_nor_plist_nor_record(mac: Mac) -> None:
    mac.script.write(term_s=0.2)
    mac.installed().start()
    mac.agent().disable()
    assert len(mac.agent().uninstall()) == 1
    state = mac.agent().state()
    assert state.phase is Phase.NOT_INSTALLED
    assert not mac.launchd.run(["launchctl", "print-disabled", "gui/501"]).out.count("=> disabled")
    assert mac.launchd.run(["launchctl", "print", GUI]).code == 113


def test_uninstall_takes_both_domains_along(mac: Mac) -> None:
    mac.installed().start()
    plist = mac.agent().state().definition
    mac.launchd.run(["launchctl", "bootstrap", "user/501", str(plist)])
    mac.agent().uninstall()
    for domain in ("gui/501", "user/501"):
        assert mac.launchd.run(["launchctl", "print", f"{domain}/{LABEL}"]).code == 113


def test_verbs_before_installation_say_so(mac: Mac) -> None:
    for verb in ("start", "stop", "enable", "disable"):
        with pytest.raises(CtlError, match="not installed") as caught:
            getattr(mac.agent(), verb)()
        assert caught.value.code is CtlExit.NOT_INSTALLED


def test_root_is_refused(mac: Mac) -> None:
    agent = LaunchdAgent(mac.home, mac.logs, uid=0)
    with pytest.raises(CtlError, match="root has no session") as caught:
        agent.install(mac.job)
    assert caught.value.code is CtlExit.DENIED


def test_home_with_a_space_and_an_ampersand_is_escaped(mac: Mac) -> None:
    mac.agent().install(mac.job)
    path = mac.agent().state().definition
    assert path is not None
    assert "&amp;" in path.read_text()
    assert plistlib.loads(path.read_bytes())["WorkingDirectory"] == str(mac.home)


def test_bootout_without_a_label_is_never_sent() -> None:
    with pytest.raises(ValueError, match="not a service target"):
        Launchctl(lambda words: pytest.fail("it was sent")).bootout("gui/501")
