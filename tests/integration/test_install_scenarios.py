"""install.sh on machines made of fakes: what it builds, switches, starts, and takes back.

pip and the daemon are played; the shell script, swiftlmctl and the service managers are real.
Invariants: nothing is switched before the new release has passed its own check; a release that is
not healthy is gone from `current` when the script ends; a second run changes no file.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes_bin.control import eventually
from fakes_bin.install_box import InstallBox

ROOT = Path(__file__).resolve().parents[2]
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


@pytest.mark.parametrize("shell", ["dash", "bash --posix"])
@pytest.mark.parametrize("kind", ["launchd", "systemd", "none"])
def test_fresh_installation_ends_with_an_answer_and_a_second_changes_nothing(
    make_box: MakeBox, kind: str, shell: str
) -> None:
    if (kind, shell) in {("systemd", "dash"), ("none", "bash --posix")}:
        pytest.skip("covered by the others")
    box = make_box(kind)
    done = box.install(shell=shell)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Paris (0.1.0)" in done.stdout
    assert (box.app / "config.toml").stat().st_mode & 0o777 == 0o600
    assert box.app.stat().st_mode & 0o777 == 0o700
    before = box.files()
    again = box.install(shell=shell)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "nothing had to be changed" in again.stdout
    assert box.files() == before


def test_everything_pip_installs_is_hashed_and_the_project_comes_alone(make_box: MakeBox) -> None:
    box = make_box("none")
    box.install("--no-start")
    calls = [call for call in box.pip_calls() if "install" in call or "wheel" in call]
    for call in calls:
        assert "--require-hashes" in call or {"--no-deps"} <= set(call)
    assert any("linux-cpu.txt" in word for call in calls for word in call)
    assert not any("vision.txt" in word for call in calls for word in call)


def test_the_packages_for_images_are_asked_for_once_and_kept(make_box: MakeBox) -> None:
    box = make_box("none")

    def asked() -> int:
        return sum("vision.txt" in word for call in box.pip_calls() for word in call)

    assert box.install("--no-start", "--vision").returncode == 10
    assert asked() == 1
    packages = box.app / "current" / "lib" / "python3.12" / "site-packages"
    (packages / "mlx_vlm").mkdir(parents=True)  # what pip, which is a fake here, would have made
    box.version("0.2.0")
    box.install("--no-start")
    assert box.current() == "0.2.0"
    assert asked() == 2


def test_mac_gets_the_metal_lock_and_a_launch_agent(make_box: MakeBox) -> None:
    box = make_box("launchd")
    done = box.install("--no-start")
    assert done.returncode == 10, done.stderr
    assert any("macos.txt" in word for call in box.pip_calls() for word in call)
    plist = box.home / "Library" / "LaunchAgents" / "io.github.swiftlm.swiftlmd.plist"
    assert f"<string>{box.app}/current/bin/python3".replace("&", "&amp;") in plist.read_text()
    assert not (box.app / "ctl.sock").exists()


@pytest.mark.parametrize("shell", ["dash", "bash --posix"])
def test_a_mac_installs_by_its_own_version_and_backs_no_release_up(
    make_box: MakeBox, shell: str
) -> None:
    box = make_box("launchd")
    box.program("tmutil", f'printf "%s\\n" "$@" >>{box.root}/tmutil.log')
    assert box.install("--no-start", shell=shell).returncode == 10
    environ = json.loads((box.root / "pip.environ").read_text())
    assert environ["SYSTEM_VERSION_COMPAT"] == "0"
    assert "PYTHONPATH" not in environ  # the build tool's, gone after the wheel
    told = (box.root / "tmutil.log").read_text().splitlines()
    assert told[:2] == ["addexclusion", str(box.app / "versions")]


@pytest.mark.parametrize(
    ("driver", "lock"),
    [("580.65", "linux-cuda13"), ("550.1", "linux-cuda12"), ("535", "linux-cpu")],
)
def test_nvidia_driver_decides_the_lock(make_box: MakeBox, driver: str, lock: str) -> None:
    box = make_box("none")
    box.program("nvidia-smi", f"echo {driver}.06")
    assert f"({lock})" in box.install("--dry-run").stdout


def test_dry_run_writes_nothing(make_box: MakeBox) -> None:
    box = make_box("none")
    assert box.install("--dry-run").returncode == 0
    assert list(box.home.iterdir()) == []


def test_programs_are_linked_and_shell_files_are_left_alone(make_box: MakeBox) -> None:
    box = make_box("none")
    (box.home / ".profile").write_text("# mine\n")
    done = box.install("--no-start")
    link = box.home / ".local" / "bin" / "swiftlmctl"
    assert link.readlink() == box.app / "current" / "bin" / "swiftlmctl"
    assert (box.home / ".profile").read_text() == "# mine\n"
    assert done.returncode == 10


def test_somebody_elses_program_of_that_name_stays(make_box: MakeBox) -> None:
    box = make_box("none")
    other = box.home / ".local" / "bin" / "swiftlmctl"
    other.parent.mkdir(parents=True)
    other.write_text("theirs")
    assert "stays" in box.install("--no-start").stdout
    assert other.read_text() == "theirs"


def test_prefix_keeps_everything_in_one_folder(make_box: MakeBox) -> None:
    box = make_box("none")
    place = box.root / "it's here"
    done = box.install("--prefix", str(place))
    assert done.returncode == 0, done.stderr
    assert {"config.toml", "current", "versions", "state", "logs"} <= {
        path.name for path in place.iterdir()
    }
    assert not box.app.exists()
    wrapper = (box.home / ".local" / "bin" / "swiftlmctl").read_text()
    assert "SWIFTLM_HOME='" in wrapper
    assert subprocess.run(["sh", "-n"], input=wrapper, text=True, check=False).returncode == 0


def test_upgrade_switches_and_keeps_the_release_before(make_box: MakeBox) -> None:
    box = make_box("launchd")
    assert box.install().returncode == 0
    box.version("0.2.0")
    done = box.install()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Paris (0.2.0)" in done.stdout
    assert box.current() == "0.2.0"
    assert "kept 0.1.0" in done.stdout
    assert len(list((box.app / "versions").iterdir())) == 2
    box.version("0.3.0")
    box.install()
    names = sorted(path.name.rpartition("-")[0] for path in (box.app / "versions").iterdir())
    assert names == ["0.2.0", "0.3.0"]


@pytest.mark.parametrize("fault", ["sick", pytest.param("mute", marks=pytest.mark.slow)])
def test_unhealthy_upgrade_is_rolled_back(make_box: MakeBox, fault: str) -> None:
    box = make_box("launchd")
    assert box.install().returncode == 0
    box.version("0.2.0")
    box.write_plan(**{fault: ["0.2.0"]})
    done = box.install()
    assert done.returncode == 70, done.stdout + done.stderr
    assert box.current() == "0.1.0"
    assert "Paris (0.1.0)" in box.ctl("run", "hello").stdout


def test_upgrade_that_fails_its_own_check_never_touches_the_running_one(make_box: MakeBox) -> None:
    box = make_box("launchd")
    assert box.install().returncode == 0
    pid = box.ctl("status", "--json").stdout
    box.version("0.2.0")
    box.write_plan(selfcheck=69)
    done = box.install()
    assert done.returncode == 1
    assert "nothing was changed" in done.stderr
    assert box.ctl("status", "--json").stdout == pid
    assert [path.name[:5] for path in (box.app / "versions").iterdir()] == ["0.1.0"]


def test_rollback_on_request_and_back_again(make_box: MakeBox) -> None:
    box = make_box("systemd")
    assert box.install("--rollback").returncode == 1  # nothing to go back to
    box.install()
    box.version("0.2.0")
    box.install()
    done = box.install("--rollback")
    assert done.returncode == 0, done.stdout + done.stderr
    assert box.current() == "0.1.0"
    assert "(0.1.0)" in box.ctl("run", "hello").stdout
    box.install("--rollback")
    assert box.current() == "0.2.0"


def test_service_that_was_switched_off_stays_off(make_box: MakeBox) -> None:
    box = make_box("launchd")
    assert box.install().returncode == 0
    assert box.ctl("service", "disable").returncode == 0
    box.version("0.2.0")
    done = box.install()
    assert done.returncode == 10, done.stdout + done.stderr
    assert "stays off" in done.stdout
    assert box.ctl("status").returncode == 3


def test_wrong_checksum_has_its_own_code_and_leaves_no_half(make_box: MakeBox) -> None:
    box = make_box("none")
    box.write_plan(pip="ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.")
    assert box.install().returncode == 65
    assert list((box.app / "versions").iterdir()) == []
    assert box.current() == ""


def test_full_disk_has_its_own_code(make_box: MakeBox) -> None:
    box = make_box("none")
    box.write_plan(
        pip="ERROR: Could not install packages due to an OSError: [Errno 28] No space left"
    )
    assert box.install().returncode == 73


def test_no_network_says_where_the_log_is_and_the_next_run_mends_it(make_box: MakeBox) -> None:
    box = make_box("none")
    box.write_plan(pip="ERROR: Could not find a version that satisfies the requirement mlx")
    done = box.install()
    assert (done.returncode, "install.log" in done.stderr) == (1, True)
    del box.plan["pip"]
    box.write_plan()
    assert box.install("--no-start").returncode == 10


def test_killed_half_way_leaves_nothing_in_the_way(make_box: MakeBox) -> None:
    box = make_box("none")
    half = box.app / "versions" / "0.1.0-deadbeef" / "venv"
    half.mkdir(parents=True)  # as a SIGKILL leaves it
    stale = box.app / ".installing"
    stale.mkdir()
    (stale / "pid").write_text("999999999\n")
    assert box.install("--no-start").returncode == 10
    assert not stale.exists()


def test_interrupted_installation_cleans_up(make_box: MakeBox, tmp_path: Path) -> None:
    box, begun = make_box("none"), tmp_path / "begun"
    slowly = f"touch {begun}; sleep 30; mkdir -p"
    python = box.bin / "python3.12"
    python.write_text(python.read_text().replace("mkdir -p", slowly))
    with subprocess.Popen(
        ["dash", str(box.checkout / "install.sh")],
        env=box.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as running:
        versions = box.app / "versions"
        assert eventually(lambda: versions.exists() and any(versions.iterdir()))
        assert eventually(begun.exists)
        import os
        import signal

        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(30) == 130
    assert list(versions.iterdir()) == []
    assert not (box.app / ".installing").exists()


def test_two_installations_at_once_are_refused(make_box: MakeBox) -> None:
    box = make_box("none")
    with subprocess.Popen(["sleep", "60"]) as other:
        lock = box.app / ".installing"
        lock.mkdir(parents=True)
        (lock / "pid").write_text(f"{other.pid}\n")
        done = box.install()
        other.kill()
    assert (done.returncode, str(other.pid) in done.stderr) == (75, True)


def test_sudo_and_root_on_a_mac_are_refused(make_box: MakeBox) -> None:
    box = make_box("launchd")
    assert box.install(SUDO_USER="ada").returncode == 77
    box.program("id", "echo 0")
    assert box.install().returncode == 77


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("sw_vers", "echo 13.6", "macOS 14"),
        ("uname", "case $1 in -m) echo x86_64 ;; *) echo Darwin ;; esac", "stays under Rosetta"),
        ("uname", "echo FreeBSD", "not on FreeBSD"),
    ],
)
def test_unsupported_system_is_refused(make_box: MakeBox, name: str, body: str, words: str) -> None:
    box = make_box("launchd")
    box.program(name, body)
    done = box.install(SWIFTLM_REEXEC="1")
    assert (done.returncode, words in done.stderr) == (69, True), done.stderr


def test_intel_mac_is_refused(make_box: MakeBox) -> None:
    box = make_box("launchd")
    box.program("uname", "case $1 in -m) echo x86_64 ;; *) echo Darwin ;; esac")
    box.program("sysctl", "exit 1")
    assert "Apple silicon" in box.install().stderr


def test_rosetta_shell_starts_again_natively(make_box: MakeBox) -> None:
    box = make_box("launchd")
    box.program("sysctl", "echo 1")
    box.program("arch", 'echo "again: $*"')
    done = box.install("--no-start")
    assert "again: -arm64 /bin/sh" in done.stdout
    assert "--no-start" in done.stdout


def test_python_that_will_not_do_is_named_with_the_reason(make_box: MakeBox) -> None:
    box = make_box("none")
    old = "import sys; sys.version_info = (3, 9); exec(sys.stdin.read())"
    box.program("python-old", f'shift 2; exec "{shutil.which("python3")}" -c "{old}" "$@"')
    done = box.install("--python", "python-old")
    assert done.returncode == 66
    assert "3.11 is needed" in done.stderr
    assert box.install("--python", "/nowhere/python3").returncode == 66


def test_no_python_at_all_names_uv(make_box: MakeBox) -> None:
    box = make_box("none")
    for path in box.bin.glob("python3*"):
        path.write_text("#!/bin/sh\nexit 1\n")
    done = box.install(PATH=f"{box.bin}:{_without_python(box)}")
    assert (done.returncode, "uv" in done.stderr) == (66, True), done.stderr


def _without_python(box: InstallBox) -> Path:
    """A folder with the few programs that the script uses, and no Python."""
    tools = box.root / "tools"
    tools.mkdir()
    for name in ("uname", "id", "sed", "head", "dirname", "cat", "sysctl"):
        if found := shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin"):
            (tools / name).symlink_to(found)
    return tools


@pytest.mark.parametrize("kind", ["launchd", "none"])
def test_uninstall_leaves_what_it_says(make_box: MakeBox, kind: str) -> None:
    box = make_box(kind)
    assert box.install().returncode == 0
    (box.app / "models" / "mine").mkdir(parents=True)
    completion, settings = complete_in_bash(box), box.home / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"mine": 1}')
    box.ctl("connect", "claude-code")
    assert "ANTHROPIC_BASE_URL" in settings.read_text()
    done = box.install("--uninstall", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kept" in done.stdout
    left = {path.name for path in box.app.iterdir()}
    assert left <= {"config.toml", "models", "pulled"}
    assert not (box.home / ".local" / "bin" / "swiftlmctl").is_symlink()
    assert not list(box.home.rglob("*.plist"))
    assert not completion.exists()
    assert (box.home / ".bashrc").read_text() == "alias mine=ls\nexport MINE=1\n"
    assert settings.read_text() == '{"mine": 1}'


def complete_in_bash(box: InstallBox) -> Path:
    """What typer's --install-completion makes, and the line by which bash reads it."""
    folder = box.home / ".bash_completions"
    folder.mkdir()
    (folder / "swiftlmctl.sh").write_text("complete\n")
    line = f"source '{folder / 'swiftlmctl.sh'}'"
    (box.home / ".bashrc").write_text(f"alias mine=ls\n{line}\nexport MINE=1\n")
    return folder


def test_purge_asks_and_then_takes_everything(make_box: MakeBox) -> None:
    box = make_box("none")
    assert box.install("--no-start").returncode == 10
    (box.app / "models").mkdir()
    refused = box.install("--uninstall", "--purge")
    assert (refused.returncode, "--yes" in refused.stderr) == (64, True)
    assert box.current() == "0.1.0"
    assert box.install("--uninstall", "--purge", "--yes").returncode == 0
    assert not box.app.exists()


@pytest.mark.parametrize(
    "words", [["--nonsense"], ["--prefix"], ["--purge"], ["--python"], ["--prefix="]]
)
def test_wrong_usage_is_64(make_box: MakeBox, words: list[str]) -> None:
    assert make_box("none").install(*words).returncode == 64


def test_help_and_version_say_and_leave(make_box: MakeBox) -> None:
    box = make_box("none")
    assert "--uninstall" in box.install("--help").stdout
    assert box.install("--version").stdout == "0.1.0\n"


def test_half_a_script_does_nothing(make_box: MakeBox) -> None:
    box = make_box("none")
    script = box.checkout / "install.sh"
    script.write_text("\n".join(script.read_text().splitlines()[:-1]) + "\n")
    assert box.install().returncode == 0
    assert list(box.home.iterdir()) == []


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shellcheck_has_no_complaint() -> None:
    done = subprocess.run(
        ["shellcheck", "-s", "sh", str(ROOT / "install.sh")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_a_headless_mac_with_filevault_is_told_that_nothing_answers_before_a_login(
    make_box: MakeBox,
) -> None:
    box = make_box("launchd")
    box.program("fdesetup", "echo FileVault is On.")
    done = box.install("--headless", "--no-start")
    assert done.returncode == 10, done.stderr
    assert "FileVault is on" in done.stdout
    box.program("fdesetup", "echo FileVault is Off.")
    assert "FileVault" not in box.install("--headless", "--no-start").stdout


def test_a_place_that_takes_no_folder_has_its_own_code(make_box: MakeBox) -> None:
    """/proc takes none, from root neither: as a home on a read-only volume."""
    done = make_box("none").install("--prefix", "/proc/swiftlm")
    assert (done.returncode, "cannot" in done.stderr) == (73, True), done.stderr
