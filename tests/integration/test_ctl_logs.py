"""`swiftlmctl logs` as a program: with the daemon dead, over a rotation, into a closed pipe."""

from __future__ import annotations

import json
import logging.handlers
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftlm_proto.paths import under

Logs = Callable[..., "subprocess.Popen[str]"]


def line(number: int, level: str = "info", seconds_ago: float = 0) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() - seconds_ago))
    return f"{stamp}.000Z {level} swiftlmd.daemon event n={number}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = under(tmp_path).logs
    made.mkdir(parents=True)
    return made


@pytest.fixture
def logs(tmp_path: Path, room_path: str) -> Logs:
    def run(*words: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "swiftlmctl", "logs", *words],
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(tmp_path),
                "SWIFTLM_HOME": str(tmp_path),
                "PYTHONPATH": room_path,
                **environ,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run


def test_last_lines_without_a_daemon(logs: Logs, folder: Path) -> None:
    (folder / "swiftlmd.log").write_text("".join(f"{line(n)}\n" for n in range(5)))
    out, _ = logs("-n", "2").communicate(timeout=60)
    assert [text.rpartition("=")[2] for text in out.split("\n") if text] == ["3", "4"]


def test_a_terminal_without_a_character_gets_a_question_mark(logs: Logs, folder: Path) -> None:
    (folder / "swiftlmd.log").write_text(f"{line(1)} ░\n", encoding="utf-8")
    out, err = logs(PYTHONIOENCODING="latin-1").communicate(timeout=60)
    assert err == ""
    assert out.endswith("event n=1 ?\n")


def test_since_is_an_age(logs: Logs, folder: Path) -> None:
    old, new = line(1, seconds_ago=7200), line(2, seconds_ago=60)
    (folder / "swiftlmd.log").write_text(f"{old}\n{new}\n")
    out, _ = logs("--since", "1h").communicate(timeout=60)
    assert out == f"{new}\n"


def test_json_is_one_record_a_line(logs: Logs, folder: Path) -> None:
    (folder / "swiftlmd.log").write_text(f"{line(1, 'error')}\nTraceback\n  x\n{line(2)}\n")
    out, _ = logs("--json", "--level", "error").communicate(timeout=60)
    record = json.loads(out)
    assert (record["level"], record["file"]) == ("error", "swiftlmd.log")
    assert record["text"].endswith("Traceback\n  x")


def test_stderr_is_the_other_file(logs: Logs, folder: Path) -> None:
    (folder / "launchd.log").write_text("Abort trap: 6\n")
    out, _ = logs("--stderr").communicate(timeout=60)
    assert out == "Abort trap: 6\n"


@pytest.mark.parametrize("words", [("--since", "10m"), ("--level", "error")])
def test_lines_without_time_and_level_are_shown_whatever_is_asked_for(
    logs: Logs, folder: Path, words: tuple[str, str]
) -> None:
    (folder / "launchd.log").write_text("Abort trap: 6\n")
    out, err = logs("--stderr", *words).communicate(timeout=60)
    assert out == "Abort trap: 6\n"
    assert "neither time nor level" in err


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_stream_is_no_traceback(
    tmp_path: Path, folder: Path, room_path: str, closed: str
) -> None:
    (folder / "swiftlmd.log").write_text(f"{line(1)}\n")
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SWIFTLM_HOME": str(tmp_path)}
    for verb, code in (("logs", 0), ("status", 3)):
        done = subprocess.run(
            f"'{sys.executable}' -m swiftlmctl {verb} {closed}",
            shell=True,
            env=env | {"PYTHONPATH": room_path, "SWIFTLM_SERVICE_MANAGER": "none"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr


def test_following_goes_on_over_a_rotation(logs: Logs, folder: Path) -> None:
    handler = logging.handlers.RotatingFileHandler(
        folder / "swiftlmd.log", maxBytes=500, backupCount=9
    )
    handler.emit(logging.makeLogRecord({"msg": line(-1)}))
    following = logs("-f", "-n", "1")
    assert following.stdout is not None
    assert following.stdout.readline().endswith("n=-1\n")
    for number in range(20):
        handler.emit(logging.makeLogRecord({"msg": line(number)}))
        assert following.stdout.readline().endswith(f"n={number}\n")
    following.terminate()
    following.communicate(timeout=60)
    handler.close()
    assert (folder / "swiftlmd.log.1").exists()


def test_reader_that_leaves_is_no_error(logs: Logs, folder: Path) -> None:
    (folder / "swiftlmd.log").write_text("".join(f"{line(n)}\n" for n in range(5000)))
    reading = logs("-n", "0")
    assert reading.stdout is not None
    reading.stdout.readline()
    reading.stdout.close()
    assert reading.stderr is not None
    assert reading.stderr.read() == ""
    assert reading.wait(60) == 0


def test_no_log_yet_is_said(logs: Logs, tmp_path: Path) -> None:
    done = logs(PATH=str(tmp_path / "empty"))
    _, err = done.communicate(timeout=60)
    assert done.returncode == 1
    assert "no log in" in err


def test_journal_is_asked_where_there_are_no_files(logs: Logs, tmp_path: Path) -> None:
    journal = tmp_path / "bin" / "journalctl"
    journal.parent.mkdir()
    journal.write_text('#!/bin/sh\necho "$@"\n')
    journal.chmod(0o755)
    out, _ = logs("-n", "5", "--level", "error", PATH=str(journal.parent)).communicate(timeout=60)
    assert out == "--user --unit swiftlmd.service --no-pager --lines 5 --priority error\n"
