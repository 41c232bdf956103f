"""install.sh and what is not its own: shell files, folders in use, clients, other releases.

Invariants: no file or folder is lost that install.sh did not make; what it says at its end is so;
where something of ours has to stay, it is named and the exit code is not 0.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes_bin.install_box import InstallBox

from swiftlmctl.connect.clients import Service, named
from swiftlmctl.connect.undo import UndoLedger

MakeBox = Callable[[str], InstallBox]
LATIN = "# Grüße\nalias müde=ls\n\0\nexport LAST=1\n".encode("latin-1")


@pytest.fixture
def make_box() -> Iterator[MakeBox]:
    made: list[InstallBox] = []

    def make(kind: str) -> InstallBox:
        made.append(InstallBox(kind))
        return made[-1]

    yield make
    for box in made:
        box.close()


def complete_in_bash(box: InstallBox, bashrc: bytes) -> bytes:
    """As `--install-completion` leaves it; the file that bash reads, with our line in it."""
    script = box.home / ".bash_completions" / "swiftlmctl.sh"
    script.parent.mkdir()
    script.write_text("complete\n")
    first, _, rest = bashrc.partition(b"\n")
    mixed = first + b"\n" + f"source '{script}'\n".encode() + rest
    (box.home / ".bashrc").write_bytes(mixed)
    return mixed


def uninstall(box: InstallBox, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return box.install("--uninstall", "--yes", *words, **environ)


def test_uninstall_takes_one_line_out_of_a_bashrc_in_any_encoding(make_box: MakeBox) -> None:
    box = make_box("none")
    box.install("--no-start")
    dotfile = box.home / "dotfiles" / "bashrc"
    dotfile.parent.mkdir()
    complete_in_bash(box, LATIN)
    (box.home / ".bashrc").rename(dotfile)
    (box.home / ".bashrc").symlink_to("dotfiles/bashrc")
    done = uninstall(box, LC_ALL="C.UTF-8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert dotfile.read_bytes() == LATIN
    assert (box.home / ".bashrc").is_symlink()
    assert list(dotfile.parent.iterdir()) == [dotfile]


def test_uninstall_on_a_full_disk_loses_no_byte_and_can_be_finished(make_box: MakeBox) -> None:
    box = make_box("none")
    box.install("--no-start")
    mixed = complete_in_bash(box, LATIN)
    box.write_plan(full_disk=True)
    done = uninstall(box)
    assert (done.returncode, ".bashrc" in done.stderr) == (1, True), done.stdout + done.stderr
    assert (box.home / ".bashrc").read_bytes() == mixed
    assert (box.home / ".bash_completions" / "swiftlmctl.sh").exists()  # which that line reads


def test_a_prefix_in_use_gets_a_folder_of_its_own(make_box: MakeBox) -> None:
    box = make_box("none")
    local = box.home / ".local"
    theirs = [local / "state/nvim/undo/work", local / "logs/mine.txt", local / "cache/x"]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("theirs")
    nothing = uninstall(box, "--prefix", str(local))
    assert (nothing.returncode, "nothing of swiftlm" in nothing.stderr) == (1, True)
    assert box.install("--no-start", "--prefix", f"{local}/").returncode == 10
    assert (local / "swiftlm" / "current").is_symlink()
    again = box.install("--no-start", "--prefix", str(local))
    assert (again.returncode, "already built" in again.stdout) == (10, True)
    done = uninstall(box, "--purge", SWIFTLM_HOME=str(local))
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (local / "swiftlm").exists()
    assert [path.read_text() for path in theirs] == ["theirs"] * 3


@pytest.mark.parametrize("made_by", ["user", "us"])
def test_an_empty_folder_goes_only_if_we_made_it(make_box: MakeBox, made_by: str) -> None:
    box = make_box("none")
    place = box.root / "place"
    if made_by == "user":
        place.mkdir()
    assert box.install("--no-start", "--prefix", str(place)).returncode == 10
    assert uninstall(box, "--prefix", str(place)).returncode == 0
    assert (place / "config.toml").exists()
    assert box.install("--no-start", "--prefix", str(place)).returncode == 10  # found again
    assert (place / "current").is_symlink()
    # Without --prefix: the programs know where it is.
    done = uninstall(box, "--purge")
    assert done.returncode == 0, done.stdout + done.stderr
    assert place.exists() == (made_by == "user")
    assert not list((box.home / ".local" / "bin").iterdir())
    done = uninstall(box)
    assert (done.returncode, "nothing of swiftlm" in done.stdout) == (0, True)


def test_a_folder_of_others_named_swiftlm_is_not_taken(make_box: MakeBox) -> None:
    box = make_box("none")
    (box.home / "swiftlm" / ".git").mkdir(parents=True)  # the checkout itself, say
    done = box.install("--no-start", "--prefix", str(box.home))
    assert (done.returncode, "hold other files" in done.stderr) == (73, True)
    assert list((box.home / "swiftlm").iterdir()) == [box.home / "swiftlm" / ".git"]


def test_uninstall_without_a_terminal_needs_yes(make_box: MakeBox) -> None:
    box = make_box("none")
    box.install("--no-start")
    done = box.install("--uninstall")
    assert (done.returncode, "--yes" in done.stderr) == (64, True)
    assert box.current() == "0.1.0"


def connected(box: InstallBox) -> Path:
    """Claude Code set up by `connect`, without asking a daemon."""
    client = named("claude-code")
    assert client is not None
    state = box.app / "state" if box.mac else box.home / ".local" / "state" / "swiftlm"
    ledger, path = UndoLedger(state / "connect"), client.path(box.home)
    service = Service("http://127.0.0.1:5413", "m", 0)
    ledger.write(client.name, path, client.edit(ledger.without_ours(client.name, path), service))
    return path


def lose_python(box: InstallBox) -> None:
    for release in (box.app / "versions").iterdir():
        (release / "venv" / "bin" / "python3").unlink()
        (release / "venv" / "bin" / "python3").symlink_to("/nowhere/python3.12")


def test_uninstall_with_a_python_that_is_gone_uses_another(make_box: MakeBox) -> None:
    box = make_box("systemd")
    box.install("--no-start")
    settings = connected(box)
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "mine": 1}))
    complete_in_bash(box, LATIN)
    lose_python(box)
    done = uninstall(box)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(settings.read_text()) == {"mine": 1}
    assert (box.home / ".bashrc").read_bytes() == LATIN
    assert not list(box.home.rglob("swiftlmd.service"))
    assert not box.app.exists() or {p.name for p in box.app.iterdir()} <= {"config.toml"}


@pytest.mark.parametrize("kind", ["systemd", "launchd", "none"])
def test_uninstall_without_any_python_ends_the_service_and_names_what_stays(
    make_box: MakeBox, kind: str
) -> None:
    box = make_box(kind)
    box.install("--no-start")
    assert box.ctl("start").returncode == 0
    pid = json.loads(box.ctl("service", "status", "--json").stdout)["pid"]
    settings = connected(box) if kind == "systemd" else None
    lose_python(box)
    for path in box.bin.glob("python3*"):
        path.write_text("#!/bin/sh\nexit 1\n")
    done = uninstall(box, PATH=f"{box.environ['PATH'].rpartition(':/usr/bin')[0]}:{tools(box)}")
    assert done.returncode == (1 if settings else 0), done.stdout + done.stderr
    assert not Path(f"/proc/{pid}/stat").exists() or zombie(pid)
    assert not list(box.home.rglob("swiftlmd.service"))
    assert not list(box.home.rglob("*.plist"))
    if settings:
        assert "claude-code still points to this service" in done.stderr
        record = box.home / ".local" / "state" / "swiftlm" / "connect" / "claude-code.json"
        assert record.exists()


def zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def tools(box: InstallBox) -> Path:
    """What install.sh needs of /usr/bin and /bin, and no Python."""
    place = box.root / "tools"
    place.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            if not program.name.startswith("python") and not (place / program.name).exists():
                (place / program.name).symlink_to(program)
    return place


def test_a_client_that_cannot_be_given_back_keeps_its_record(make_box: MakeBox) -> None:
    box = make_box("none")
    box.install("--no-start")
    settings = connected(box)
    settings.write_text("// no JSON any more\n" + settings.read_text())
    done = uninstall(box)
    assert (done.returncode, "claude-code" in done.stderr) == (1, True)
    settings.write_text(settings.read_text().partition("\n")[2])
    assert box.install("--no-start").returncode == 10
    assert uninstall(box).returncode == 0
    assert not settings.exists()


def test_a_release_whose_python_is_gone_is_built_again(make_box: MakeBox) -> None:
    box = make_box("none")
    box.install("--no-start")
    lose_python(box)
    done = box.install("--no-start")
    assert (done.returncode, "building it again" in done.stdout) == (10, True), done.stderr
    assert box.ctl("config", "--help").returncode == 0


def test_a_home_that_was_moved_is_built_again(make_box: MakeBox) -> None:
    box = make_box("none")
    box.install("--no-start")
    complete = next((box.app / "versions").glob("*/complete"))
    complete.write_text(complete.read_text().replace(str(box.home), "/Users/old"))
    assert "building it again" in box.install("--no-start").stdout
    program = box.app / "current" / "bin" / "swiftlmctl"
    program.write_text("#!/bin/sh\n'''exec' \"/Users/old/bin/python3\" \"$0\" \"$@\"\n' '''\n")
    assert "building it again" in box.install("--no-start").stdout
    assert "already built" in box.install("--no-start").stdout


@pytest.mark.parametrize(
    "environ",
    [{"PIP_USER": "1", "PIP_TARGET": "/tmp/x", "PIP_PREFIX": "/tmp/y"}, {"CDPATH": "/usr:/tmp"}],
)
def test_what_a_shell_exports_leads_nothing_astray(
    make_box: MakeBox, environ: dict[str, str]
) -> None:
    box = make_box("none")
    done = subprocess.run(
        ["sh", f"{box.checkout.name}/install.sh", "--no-start"],
        cwd=box.checkout.parent,
        env=box.environ | environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 10, done.stderr
    seen = json.loads((box.root / "pip.environ").read_text())
    assert {k: v for k, v in seen.items() if k.startswith("PIP_")} == {"PIP_USER": "0"}


def test_a_log_that_cannot_be_written_is_said(make_box: MakeBox) -> None:
    box = make_box("none")
    (box.home / ".local/state/swiftlm/logs/install.log").mkdir(parents=True)
    for shell in ("dash", "bash --posix"):
        done = box.install("--no-start", shell=shell)
        assert (done.returncode, "install.sh: cannot write" in done.stderr) == (73, True)
    assert not (box.app / ".installing").exists()


def test_a_lock_whose_number_was_given_out_again_is_taken_over(make_box: MakeBox) -> None:
    box = make_box("none")
    lock = box.app / ".installing"
    lock.mkdir(parents=True)
    (lock / "pid").write_text(f"{os.getpid()}\n")
    (lock / "birth").write_text("Thu Jan  1 00:00:00 1970\n")
    assert box.install("--no-start").returncode == 10
    lock.mkdir()
    (lock / "pid").write_text(f"{os.getpid()}\n")
    done = uninstall(box)  # this one has no birth: it may be at work
    assert (done.returncode, str(lock) in done.stderr) == (75, True)
    assert box.current() == "0.1.0"


def test_upgrades_that_start_nothing_remove_old_releases_too(make_box: MakeBox) -> None:
    box = make_box("none")
    for number in ("0.1.0", "0.2.0", "0.3.0"):
        box.version(number)
        box.install("--no-start")
    assert len(list((box.app / "versions").iterdir())) == 2
