"""The configuration while the daemon is down: read, changed and checked by the daemon's program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

Ctl = Callable[..., "subprocess.CompletedProcess[str]"]

CONFIG = """\
# mine
[http]
port = 5500  # a free one
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text(CONFIG)
    return tmp_path


@pytest.fixture
def ctl_words(home: Path, room_path: str) -> Ctl:
    def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "SWIFTLM_HOME": str(home),
            "SWIFTLM_SERVICE_MANAGER": "none",
            "PYTHONPATH": room_path,
            **environ,
        }
        command = [sys.executable, "-m", "swiftlmctl", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def ctl(ctl_words: Ctl) -> Ctl:
    return partial(ctl_words, "config")


def test_show_names_who_set_each_value(ctl: Ctl) -> None:
    done = ctl("show", "--json", SWIFTLM_LOG_LEVEL="debug")
    options = {entry["key"]: entry for entry in json.loads(done.stdout)["options"]}
    assert (options["http.port"]["value"], options["http.port"]["origin"]) == ("5500", "file")
    assert options["log.level"]["origin"] == "environment"
    assert options["http.host"]["origin"] == "default"


def test_show_takes_a_table(ctl: Ctl) -> None:
    lines = ctl("show", "hub").stdout.splitlines()
    assert [line.split(".")[0] for line in lines[1:-2]] == ["hub"] * (len(lines) - 3)
    assert "no table 'hup'" in ctl("show", "hup").stderr


def test_a_negative_value_is_no_option(ctl: Ctl) -> None:
    assert "from 0 to 65535" in ctl("set", "http.port", "-1").stderr


def test_set_keeps_comments_and_unset_brings_the_default_back(ctl: Ctl, home: Path) -> None:
    assert ctl("set", "log.level", "debug").returncode == 0
    text = (home / "config.toml").read_text()
    assert "# mine" in text
    assert "# a free one" in text
    assert ctl("get", "log.level").stdout == "debug\n"
    assert ctl("unset", "log.level").returncode == 0
    assert ctl("get", "log.level").stdout == "info\n"


def test_what_holds_for_one_model_is_set_and_shown(ctl: Ctl, home: Path) -> None:
    done = ctl("set", "model.qwen2.5.context", "4096")
    assert (done.returncode, done.stdout) == (
        0,
        'model."qwen2.5".context = 4096 (file); counts when a model is loaded\n',
    )
    assert '[model."qwen2.5"]\ncontext = 4096' in (home / "config.toml").read_text()
    assert ctl("get", 'model."qwen2.5".context').stdout == "4096\n"
    assert 'model."qwen2.5".context' in ctl("show", "model").stdout
    assert "model has no option 'contxt'" in ctl("set", "model.a.contxt", "1").stderr


def test_an_override_by_the_environment_is_said(ctl: Ctl) -> None:
    done = ctl("set", "http.port", "5600", SWIFTLM_HTTP_PORT="5700")
    assert done.stdout == (
        "http.port = 5700 (environment); SWIFTLM_HTTP_PORT in the daemon's environment overrides "
        "the file\n"
    )


def test_wrong_key_names_the_nearest(ctl: Ctl) -> None:
    done = ctl("set", "http.prot", "1")
    assert done.returncode == 1
    assert "did you mean 'http.port'" in done.stderr


def test_broken_file_is_found_by_validate_and_edit_is_offered(ctl: Ctl, home: Path) -> None:
    assert "is sound" in ctl("validate").stdout
    (home / "config.toml").write_text("[http]\nprot = 1\n")
    done = ctl("validate")
    assert done.returncode == 1
    assert "config.toml: unknown option 'http.prot'" in done.stderr
    assert "swiftlmctl config edit" in done.stderr


def test_edit_works_on_a_copy_and_takes_only_what_is_sound(ctl: Ctl, home: Path) -> None:
    editor = home / "editor"
    editor.write_text('#!/bin/sh\necho "[nonsense]" > "$1"\n')
    editor.chmod(0o755)
    done = ctl("edit", EDITOR=str(editor))
    assert done.returncode == 1
    assert "config.toml: unknown table [nonsense]" in done.stderr
    assert "your changes were discarded" in done.stderr
    assert (home / "config.toml").read_text() == CONFIG  # only a sound text gets there
    editor.write_text('#!/bin/sh\necho "[log]" > "$1"\n')
    assert "is not running; it reads the file when" in ctl("edit", EDITOR=str(editor)).stdout


@pytest.mark.parametrize(
    ("answers", "expected"), [("y\n", "[log]\nlevel = 'debug'\n"), ("n\n", CONFIG)]
)
def test_at_a_terminal_a_bad_text_is_edited_again_or_discarded(
    home: Path, room_path: str, answers: str, expected: str
) -> None:
    editor = home / "editor"
    right = "[log]\\nlevel = 'debug'\\n"
    editor.write_text(
        '#!/bin/sh\nif grep -q wrong "$1"; then\n'
        f'printf "{right}" > "$1"\nelse echo \'[wrong]\' > "$1"; fi\n'
    )
    editor.chmod(0o755)
    env = {
        "PATH": os.environ["PATH"], "HOME": str(home), "SWIFTLM_HOME": str(home),
        "SWIFTLM_SERVICE_MANAGER": "none", "PYTHONPATH": room_path, "EDITOR": str(editor),
    }  # fmt: skip
    ours, theirs = os.openpty()
    os.write(ours, answers.encode())
    done = subprocess.run(
        [sys.executable, "-m", "swiftlmctl", "config", "edit"],
        env=env, stdin=theirs, capture_output=True, text=True, check=False,
    )  # fmt: skip
    os.close(ours)
    os.close(theirs)
    assert "unknown table [wrong]" in done.stderr
    assert (home / "config.toml").read_text() == expected
    assert ("discarded" in done.stderr) == (expected == CONFIG)


def test_an_edit_that_meets_another_change_loses_neither(ctl: Ctl, home: Path) -> None:
    file = home / "config.toml"
    editor = home / "editor"
    editor.write_text(f'#!/bin/sh\necho "[log]" > "$1"\necho "[http]" > "{file}"\n')
    editor.chmod(0o755)
    done = ctl("edit", EDITOR=str(editor))
    assert done.returncode == 1
    assert file.read_text() == "[http]\n"
    assert (home / "config.toml.edited").read_text() == "[log]\n"
    assert "config.toml.edited" in done.stderr


def test_start_and_restart_refuse_a_file_that_no_daemon_would_start_with(
    home: Path, ctl_words: Ctl
) -> None:
    (home / "config.toml").write_text("[http]\nport = 'x'\n")
    for verb in ("start", "restart"):
        done = ctl_words(verb, "--wait", "0")
        assert done.returncode == 1
        assert "config.toml: http.port = 'x': must be integer" in done.stderr
        assert f"`{verb}` changed nothing" in done.stderr
        assert "swiftlmctl config edit" in done.stderr
