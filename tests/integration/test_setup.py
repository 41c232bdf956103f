"""`swiftlmctl setup` and `uninstall` in an environment that uv or pipx made: an empty home, fakes
of the service managers, the daemon played, swiftlmctl real."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes_bin.install_box import InstallBox

from swiftlm_proto.exit_codes import SetupExit
from swiftlmctl.commands import setup
from swiftlmctl.commands.setup import _refuse_mac, config_text
from swiftlmctl.commands.uninstall import tool_command
from swiftlmctl.errors import CtlError

UV, PIPX = ".local/share/uv/tools/swiftlm", ".local/share/pipx/venvs/swiftlm"
Ctl = Callable[..., subprocess.CompletedProcess[str]]


class ToolBox(InstallBox):
    """`place` is where the tool keeps the environment."""

    def __init__(self, kind: str, place: str) -> None:
        super().__init__(kind)
        self.venv = self.home / place
        self.venv.parent.mkdir(parents=True)
        subprocess.run([self.bin / "python3", "-I", "-m", "venv", self.venv], check=True)

    def ctl(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        python = self.venv / "bin/python3"
        return self.run([python, "-I", "-X", "utf8", "-m", "swiftlmctl", *words], environ)

    def left(self) -> set[str]:
        """What lies in the home outside the tool's environment."""
        found = (path for path in self.home.rglob("*") if not path.is_dir())
        outside = (path for path in found if self.venv not in path.parents)
        return {str(path.relative_to(self.home)) for path in outside}


@pytest.fixture
def make_tool() -> Iterator[Callable[[str, str], ToolBox]]:
    made: list[ToolBox] = []

    def make(kind: str, place: str = UV) -> ToolBox:
        made.append(ToolBox(kind, place))
        return made[-1]

    yield make
    for box in made:
        box.ctl("stop", "--force")
        box.close()


MakeTool = Callable[..., ToolBox]


@pytest.mark.parametrize(("kind", "place"), [("launchd", UV), ("systemd", PIPX), ("none", UV)])
def test_a_tool_ends_with_an_answer_and_leaves_what_it_names(
    make_tool: MakeTool, kind: str, place: str
) -> None:
    box = make_tool(kind, place)
    assert box.left() == set()
    done = box.ctl("setup")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Paris" in done.stdout
    before = box.files()
    again = box.ctl("setup")
    assert (again.returncode, "Paris" in again.stdout) == (0, True), again.stderr
    assert box.files() == before

    refused = box.ctl("uninstall")
    assert (refused.returncode, "--yes" in refused.stderr) == (SetupExit.USAGE, True)
    gone = box.ctl("uninstall", "--yes")
    assert gone.returncode == 0, gone.stdout + gone.stderr
    assert ("uv tool uninstall" if place == UV else "pipx uninstall") in gone.stdout
    config = box.app / "config.toml"
    assert {box.home / name for name in box.left()} - {box.app / "pulled"} == {config}
    assert f"kept: {config}" in gone.stdout


def test_without_a_start_it_is_registered_and_has_its_own_code(make_tool: MakeTool) -> None:
    box = make_tool("launchd")
    done = box.ctl("setup", "--no-start")
    assert done.returncode == SetupExit.NOT_STARTED
    assert list(box.home.rglob("*.plist"))
    assert box.ctl("uninstall", "--yes", "--purge").returncode == 0
    assert box.left() == set()


def test_uninstall_gives_clients_back(make_tool: MakeTool) -> None:
    box = make_tool("none")
    assert box.ctl("setup").returncode == 0
    settings = box.home / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"mine": 1}')
    box.ctl("connect", "claude-code")
    assert "ANTHROPIC_BASE_URL" in settings.read_text()
    assert box.ctl("uninstall", "--yes").returncode == 0
    assert settings.read_text() == '{"mine": 1}'


def test_a_dry_run_removes_nothing(make_tool: MakeTool) -> None:
    box = make_tool("none")
    assert box.ctl("setup", "--no-start").returncode == SetupExit.NOT_STARTED
    before = box.files()
    assert "to be removed" in box.ctl("uninstall", "--dry-run").stdout
    assert box.files() == before


def test_a_daemon_that_gets_not_ready_is_unhealthy(make_tool: MakeTool) -> None:
    box = make_tool("none")
    (box.root / "plan.json").write_text('{"sick": [""]}')
    done = box.ctl("setup")
    assert done.returncode == SetupExit.UNHEALTHY, done.stdout + done.stderr


def test_an_installation_of_install_sh_is_not_taken_over(make_tool: MakeTool) -> None:
    box = make_tool("none")
    other = box.app / "versions" / "0.1.0-abc" / "venv"
    other.mkdir(parents=True)
    (box.app / "current").symlink_to("versions/0.1.0-abc/venv")
    for verb in ("setup", "uninstall"):
        done = box.ctl(verb)
        assert done.returncode == SetupExit.USAGE
        assert "sh install.sh --uninstall" in done.stderr


def test_sudo_is_refused(make_tool: MakeTool) -> None:
    done = make_tool("none").ctl("setup", SUDO_USER="ada")
    assert (done.returncode, "without sudo" in done.stderr) == (SetupExit.IS_ROOT, True)


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc").exists(), reason="needs a folder")
def test_a_place_that_cannot_be_written_has_its_own_code(make_tool: MakeTool) -> None:
    """/proc takes no folder, from root neither: as a home on a read-only volume."""
    done = make_tool("none").ctl("setup", SWIFTLM_HOME="/proc/swiftlm")
    assert done.returncode == SetupExit.CANNOT_WRITE, done.stderr
    assert "cannot write /proc/swiftlm" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("uid", "machine", "release", "code", "words"),
    [
        (0, "arm64", "15.1", SetupExit.IS_ROOT, "root has no session"),
        (501, "x86_64", "15.1", SetupExit.NO_SYSTEM, "under Rosetta"),
        (501, "arm64", "13.6.1", SetupExit.NO_SYSTEM, "MLX needs macOS 14; this is 13.6.1"),
    ],
)
def test_a_mac_that_cannot_run_it_is_told_why(
    uid: int, machine: str, release: str, code: SetupExit, words: str
) -> None:
    with pytest.raises(CtlError) as refused:
        _refuse_mac(uid, machine, release)
    assert (refused.value.code, words in refused.value.text()) == (code, True)


@pytest.mark.parametrize("release", ["14.0", "15.1", "16.0", "26.2", "10.16", ""])
def test_a_mac_that_can_run_it_is_let_through(release: str) -> None:
    _refuse_mac(501, "arm64", release)  # 10.16 is what an old SDK says of any newer system


def test_the_configuration_takes_hf_home_of_the_shell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "[hub]" not in config_text({})
    assert 'home = "/disk/hf"' in config_text({"HF_HOME": "/disk/hf"})
    assert f'home = "{tmp_path}/hf"' in config_text({"HF_HOME": "hf"})
    assert 'home = "/a\\"b\\\\c"' in config_text({"HF_HOME": '/a"b\\c'})
    assert setup.MODEL in config_text({})


@pytest.mark.parametrize(
    ("prefix", "command"),
    [
        ("/Users/a/.local/share/uv/tools/swiftlm", "uv tool uninstall swiftlm"),
        ("/Users/a/.local/pipx/venvs/swiftlm", "pipx uninstall swiftlm"),
        ("/opt/venv", "/opt/venv/bin/python -m pip uninstall swiftlm"),
    ],
)
def test_the_tool_that_removes_the_programs_is_named(prefix: str, command: str) -> None:
    assert tool_command(prefix) == command
