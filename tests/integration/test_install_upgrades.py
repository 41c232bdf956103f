"""Upgrades, rollbacks and what may come between: an old daemon that stays, a sick release, a kill.

Invariants: "it serves" is said of the release that serves; after a failure the release before
answers, and `previous` leads to a release that has answered; the next command mends what a kill
left. `test_killed_anywhere` restores every state of the disk that a traced run went through.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest
from fakes_bin.install_box import InstallBox

MakeBox = Callable[[str], InstallBox]


@pytest.fixture
def make_box() -> Iterator[MakeBox]:
    made: list[InstallBox] = []

    def make(kind: str) -> InstallBox:
        made.append(InstallBox(kind))
        return made[-1]

    yield make
    for box in made:
        box.close()


def previous(box: InstallBox) -> str:
    link = box.app / "previous"
    return os.readlink(link).split("/")[1].rpartition("-")[0] if link.is_symlink() else ""


def answer(box: InstallBox) -> str:
    return box.ctl("run", "hello").stdout.strip()


def test_an_old_daemon_that_does_not_leave_is_killed_before_the_switch(make_box: MakeBox) -> None:
    box = make_box("none")
    box.write_plan(deaf=["0.1.0"], patience_s=0)
    assert box.install().returncode == 0
    old = json.loads(box.ctl("service", "status", "--json").stdout)["pid"]
    box.version("0.2.0")
    done = box.install()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killing it" in done.stdout
    assert "Paris (0.2.0)" in done.stdout
    assert json.loads(box.ctl("service", "status", "--json").stdout)["pid"] != old
    done = box.install("--rollback")
    assert (done.returncode, "back: 0.1.0" in done.stdout) == (0, True), done.stdout + done.stderr
    done = box.install("--rollback")
    assert "forward again: 0.2.0" in done.stdout, done.stdout + done.stderr
    assert answer(box) == "Paris (0.2.0)"


def test_the_way_back_from_a_bad_upgrade_leads_to_a_good_release(make_box: MakeBox) -> None:
    box = make_box("none")
    for number in ("0.0.9", "0.1.0"):
        box.version(number)
        assert box.install().returncode == 0
    box.version("0.2.0")
    box.write_plan(sick=["0.2.0"])
    done = box.install()
    assert (done.returncode, "0.1.0-" in done.stderr) == (70, True), done.stdout + done.stderr
    assert (box.current(), previous(box), answer(box)) == ("0.1.0", "0.0.9", "Paris (0.1.0)")
    assert box.install("--rollback").returncode == 0
    assert (box.current(), answer(box)) == ("0.0.9", "Paris (0.0.9)")
    box.write_plan(sick=["0.1.0"])
    done = box.install("--rollback")  # to one that is sick by now
    assert (done.returncode, "is back" in done.stderr) == (70, True), done.stdout + done.stderr
    assert (box.current(), answer(box)) == ("0.0.9", "Paris (0.0.9)")


@pytest.mark.slow
def test_a_release_on_trial_when_it_was_killed_is_tried_again_with_a_way_back(
    make_box: MakeBox,
) -> None:
    box = make_box("none")
    assert box.install().returncode == 0
    box.version("0.2.0")
    box.write_plan(sick=["0.2.0"])
    script = box.checkout / "install.sh"
    whole = script.read_text()
    script.write_text(whole.replace("\n  link_programs\n", "\n  kill -9 $$\n", 1))
    assert box.install().returncode == -9
    assert box.current() == "0.2.0"
    script.write_text(whole)
    done = box.install()
    assert done.returncode == 70, done.stdout + done.stderr
    assert (box.current(), answer(box)) == ("0.1.0", "Paris (0.1.0)")


@pytest.mark.slow
def test_a_release_that_refuses_a_newer_option_gets_its_own_configuration(
    make_box: MakeBox,
) -> None:
    box = make_box("none")
    box.install("--no-start")
    config = box.app / "config.toml"
    old = config.read_text()
    box.version("0.2.0")
    box.install("--no-start")
    new = old + "\n[engine]\nfuture_option = 1\n"
    config.write_text(new)
    box.write_plan(older_config=["0.1.0"])
    done = box.install("--rollback", "--no-start")
    assert done.returncode == 10, done.stdout + done.stderr
    assert config.read_text() == old
    kept = next(p for p in box.app.glob("config.toml.0.2.0-*") if str(p) in done.stdout)
    assert kept.read_text() == new


# --- killed at every change of the disk's state ---

TRAP = r"""
snap() {
  sign=$(cd "$SNAP_HOME" && find . -name '*.log' -prune -o -name '*.sock' -prune \
    -o -printf '%y %P %l %s\n' | LC_ALL=C sort | md5sum)
  sign=${sign%% *}
  [ -d "$SNAPS/$sign" ] && return
  cp -a "$SNAP_HOME" "$SNAPS/$sign"
  echo "$sign $1" >>"$SNAPS/order"
}
if [ -n "${SNAPS:-}" ]; then set -T; trap 'snap "$LINENO" </dev/null >/dev/null 2>&1' DEBUG; fi
"""


class Traced:
    """One run of install.sh, and the home as it was after each change."""

    def __init__(self, box: InstallBox, *words: str) -> None:
        self.box = box
        script = box.checkout / "install.sh"
        whole = script.read_text()
        script.write_text(whole.replace("set -eu\n", f"set -eu\n{TRAP}", 1))
        self.snaps = box.root / "snaps"
        self.snaps.mkdir()
        environ = {"SNAPS": str(self.snaps), "SNAP_HOME": str(box.home)}
        self.done = box.install(*words, shell="bash --posix", **environ)
        script.write_text(whole)
        order = (self.snaps / "order").read_text().splitlines()
        self.states = [line.split()[0] for line in order if len(line.split()[0]) == 32]

    def restore(self, state: str) -> None:
        """The home as it was when the kill came, without any process of ours."""
        self.box.end_processes()
        shutil.rmtree(self.box.home)
        subprocess.run(["cp", "-a", str(self.snaps / state), str(self.box.home)], check=True)
        for lock in self.box.home.rglob(".installing/pid"):
            lock.write_text("999999999\n")


def leftovers(box: InstallBox) -> list[str]:
    """What a finished command leaves nowhere."""
    names = ("*.new", ".installing*", ".*swiftlm-[0-9]*")
    return sorted({path.name for name in names for path in box.app.rglob(name)})


def chosen(states: list[str], every: int) -> list[str]:
    return states[::every]


@pytest.mark.parametrize(
    ("verb", "every"),
    [
        pytest.param("install", 7, id="install"),
        pytest.param("install", 1, id="install-all", marks=pytest.mark.slow),
        pytest.param("upgrade", 1, id="upgrade-all", marks=pytest.mark.slow),
        pytest.param("rollback", 1, id="rollback-all", marks=pytest.mark.slow),
        pytest.param("uninstall", 1, id="uninstall-all", marks=pytest.mark.slow),
    ],
)
def test_killed_anywhere(make_box: MakeBox, verb: str, every: int) -> None:
    box = make_box("none")
    if verb != "install":
        box.install("--no-start")
    if verb in ("upgrade", "rollback"):
        box.version("0.2.0")
    if verb == "rollback":
        box.install("--no-start")
    words = {
        "install": ("--no-start",),
        "upgrade": ("--no-start",),
        "rollback": ("--rollback", "--no-start"),
        "uninstall": ("--uninstall", "--yes"),
    }[verb]
    bashrc = b"# mine\nalias a=b\n"
    if verb == "uninstall":
        script = box.home / ".bash_completions" / "swiftlmctl.sh"
        script.parent.mkdir()
        script.write_text("complete\n")
        (box.home / ".bashrc").write_bytes(f"# mine\nsource '{script}'\nalias a=b\n".encode())
    traced = Traced(box, *words)
    assert traced.done.returncode == (0 if verb == "uninstall" else 10), traced.done.stderr
    assert len(traced.states) >= 5
    for state in chosen(traced.states, every):
        traced.restore(state)
        done = box.install(*words)
        if verb == "uninstall":
            assert done.returncode == 0, (state, done.stdout + done.stderr)
            assert (box.home / ".bashrc").read_bytes() == bashrc
            assert not (box.app / "versions").exists()
            assert not (box.home / ".local" / "state" / "swiftlm").exists()
            continue
        assert done.returncode == 10, (state, done.stdout + done.stderr)
        assert (box.app / "current" / "bin" / "python3").exists()
        assert box.current() in ("0.1.0", "0.2.0")
        assert verb == "rollback" or box.current() == box_version(box)
        assert leftovers(box) == [], state
        for release in (box.app / "versions").iterdir():
            assert (release / "complete").exists()
            assert not (release / "on-trial").exists()


def box_version(box: InstallBox) -> str:
    return (box.checkout / "pyproject.toml").read_text().split('"')[1]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["sick", "mute", "none"])
def test_an_upgrade_with_a_start_killed_anywhere_ends_with_a_release_that_answers(
    make_box: MakeBox, fault: str
) -> None:
    box = make_box("none")
    assert box.install().returncode == 0
    box.version("0.2.0")
    box.write_plan(**({fault: ["0.2.0"]} if fault != "none" else {}))
    traced = Traced(box)
    assert traced.done.returncode == (0 if fault == "none" else 70), traced.done.stderr
    for state in traced.states:
        traced.restore(state)
        done = box.install()
        serves = "0.2.0" if fault == "none" else "0.1.0"
        wanted = 0 if fault == "none" else 70
        assert done.returncode == wanted, (state, done.stdout + done.stderr)
        assert (box.current(), answer(box)) == (serves, f"Paris ({serves})"), state
        assert leftovers(box) == [], state
