"""Tab completion: what is added to the shell's files, and that nothing else ever changes there."""

from __future__ import annotations

from pathlib import Path

import pytest
from killed import at_every_line
from typer.testing import CliRunner

from swiftlm_proto.paths import Paths, under
from swiftlmctl.commands import shell_completion as completion
from swiftlmctl.errors import CtlError
from swiftlmctl.main import build

BEFORE = "# Grüße\nalias a=b\n".encode("latin-1")


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    monkeypatch.setenv("HOME", str(made))
    monkeypatch.setenv("SWIFTLM_HOME", str(tmp_path / "app"))
    return made


@pytest.fixture
def paths(home: Path) -> Paths:
    return under(home.parent / "app")


def install(home: Path, paths: Paths, name: str) -> None:
    completion.install(completion.shells(home)[name], "complete", paths)


def tree(home: Path) -> dict[str, bytes]:
    return {str(p.relative_to(home)): p.read_bytes() for p in home.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_a_home_without_anything_is_empty_again(home: Path, paths: Paths, name: str) -> None:
    for _ in range(2):
        install(home, paths, name)
    assert completion.shells(home)[name].script.read_text() == "complete\n"
    assert completion.remove(paths, home)
    assert list(home.iterdir()) == []
    assert completion.remove(paths, home) == []


@pytest.mark.parametrize(("name", "start_up"), [("bash", ".bashrc"), ("zsh", ".zshrc")])
def test_start_up_file_gets_one_line_and_loses_one(
    home: Path, paths: Paths, name: str, start_up: str
) -> None:
    (home / start_up).write_bytes(BEFORE)
    for _ in range(2):
        install(home, paths, name)
    added = (home / start_up).read_bytes().removeprefix(BEFORE)
    assert (added.count(b"\n"), len(added) > 10) == (1, True)
    (home / start_up).write_bytes((home / start_up).read_bytes() + b"export SINCE=1\n")
    completion.remove(paths, home)
    assert (home / start_up).read_bytes() == BEFORE + b"export SINCE=1\n"


def test_folders_of_the_user_stay_even_empty(home: Path, paths: Paths) -> None:
    for folder in (".bash_completions", ".zfunc", ".config/fish"):
        (home / folder).mkdir(parents=True)
    for name in completion.shells(home):
        install(home, paths, name)
    completion.remove(paths, home)
    assert sorted(p.name for p in home.iterdir()) == [".bash_completions", ".config", ".zfunc"]
    assert (home / ".config" / "fish").is_dir()
    assert not (home / ".config" / "fish" / "completions").exists()


def test_zsh_that_has_completion_already_keeps_its_own_line(home: Path, paths: Paths) -> None:
    own = b"fpath+=~/.zfunc; autoload -Uz compinit; compinit\n"
    (home / ".zshrc").write_bytes(own)
    install(home, paths, "zsh")
    assert (home / ".zshrc").read_bytes() == own
    completion.remove(paths, home)
    assert (home / ".zshrc").read_bytes() == own


@pytest.mark.parametrize("verb", ["install", "remove"])
def test_a_kill_at_any_line_is_mended_by_the_next_command(
    home: Path, paths: Paths, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swiftlm_proto.user_files._lives", lambda _: False)  # it was killed
    bashrc = home / ".bashrc"
    line = completion.shells(home)["bash"].lines[0].encode() + b"\n"

    def stage() -> None:
        completion.remove(paths, home)
        bashrc.write_bytes(BEFORE)
        if verb == "remove":
            install(home, paths, "bash")

    def run() -> None:
        install(home, paths, "bash") if verb == "install" else completion.remove(paths, home)

    stage()
    for _ in at_every_line(run, ["user_files.py", "commands/shell_completion.py"]):
        assert bashrc.read_bytes() in (BEFORE, BEFORE + line)
        if bashrc.read_bytes() != BEFORE:  # bash never reads a file that is not there
            assert (home / ".bash_completions" / "swiftlmctl.sh").exists()
        completion.remove(paths, home)
        assert tree(home) == {".bashrc": BEFORE}
        stage()


def test_the_options_of_the_program_use_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".bashrc").write_bytes(BEFORE)
    runner = CliRunner()
    # Read when the program is built: the tests may have been started from any shell.
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    done = runner.invoke(build(), ["--install-completion", "bash"])
    assert done.exit_code == 0, done.output
    assert b".bash_completions/swiftlmctl.sh'" in (home / ".bashrc").read_bytes()
    assert "_SWIFTLMCTL_COMPLETE" in (home / ".bash_completions" / "swiftlmctl.sh").read_text()
    assert runner.invoke(build(), ["--uninstall-completion"]).exit_code == 0
    assert tree(home) == {".bashrc": BEFORE}


def test_another_shell_is_refused_by_name(home: Path) -> None:
    with pytest.raises(CtlError, match="powershell"):
        completion.installed_by_typer("powershell")
