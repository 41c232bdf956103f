"""Log lines: their shape, their files, reading them back across rotation."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, closing
from datetime import datetime
from pathlib import Path

import pytest

from swiftlmd.admin.log_files import LineFilter, Tail, follow, last_lines
from swiftlmd.lifecycle import logs

STAMP = "2026-11-28T09:30:0{}.000Z"


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_lines_have_time_level_and_name_and_requests_go_to_their_own_file(
    tmp_path: Path,
) -> None:
    with logs.logging_to(tmp_path, "info", {}):
        logging.getLogger("swiftlmd.x").info("model ready model=%s", "a")
        logging.getLogger("swiftlmd.x").debug("not wanted")
        fields = {"route": "chat", "status": 200}
        logging.getLogger("swiftlmd.access").info("request", extra={"fields": fields})
        try:
            raise ValueError("boom")
        except ValueError:
            logging.getLogger("swiftlmd.x").exception("it failed")
    main = lines(tmp_path / "swiftlmd.log")
    stamp, level, name, text = main[0].split(" ", 3)
    assert len(stamp) == 24
    assert (level, name, text) == ("info", "swiftlmd.x", "model ready model=a")
    assert "ValueError: boom" in main[-1]
    assert not any("not wanted" in line for line in main)
    entry = json.loads(lines(tmp_path / "access.log")[0])
    assert (entry["route"], entry["status"], len(entry["time"])) == ("chat", 200, 24)


def test_files_are_private_and_rotate_by_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_MAX_BYTES", 2000)
    with logs.logging_to(tmp_path, "info", {}):
        for number in range(200):
            logging.getLogger("swiftlmd.x").info("line %d of many that fill the file", number)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["swiftlmd.log", *(f"swiftlmd.log.{n}" for n in range(1, 6))]
    assert all(path.stat().st_size <= 2000 for path in tmp_path.iterdir())
    assert "line 199" in lines(tmp_path / "swiftlmd.log")[-1]


def test_a_log_that_somebody_deletes_begins_anew(tmp_path: Path) -> None:
    folder, log = tmp_path / "logs", logging.getLogger("swiftlmd.x")
    with logs.logging_to(folder, "info", {}):
        log.info("first")
        wait_for_line(folder / "swiftlmd.log", "first")
        shutil.rmtree(folder)
        log.info("second")
        wait_for_line(folder / "swiftlmd.log", "second")
        (folder / "swiftlmd.log").rename(folder / "kept.log")
        log.info("third")
    assert len(lines(folder / "kept.log")) == 1
    assert "third" in lines(folder / "swiftlmd.log")[0]
    assert folder.stat().st_mode & 0o777 == 0o700


def wait_for_line(path: Path, text: str) -> None:
    """Lines are written by a thread of their own."""
    ends_at = time.monotonic() + 5
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < ends_at, f"{text!r} never came to {path}"
        time.sleep(0.005)


def test_a_disk_that_is_full_costs_lines_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "swiftlmd.log").symlink_to("/dev/full")
    with logs.logging_to(tmp_path, "info", {}):
        for _ in range(50):
            logging.getLogger("swiftlmd.x").error("lost")
    assert "Traceback" not in capsys.readouterr().err


HELD_TERMINAL = """
import logging, os, sys
from pathlib import Path
from swiftlmd.lifecycle import logs
with logs.logging_to(Path(sys.argv[1]), "info", {"JOURNAL_STREAM": "1:2"}):
    for number in range(5000):
        logging.getLogger("swiftlmd.x").info("line %d %s", number, "x" * 90)
"""


def test_a_terminal_that_is_held_stops_neither_the_file_nor_the_end(
    tmp_path: Path, room_path: str
) -> None:
    """Ctrl-S, or a connection that is gone: nobody reads what is written there."""
    terminal, its_end = os.openpty()
    try:
        command = [sys.executable, "-c", HELD_TERMINAL, str(tmp_path)]
        environ = {"PYTHONPATH": room_path}
        subprocess.run(command, stderr=its_end, env=environ, timeout=60, check=True)
        assert "line 4999 " in lines(tmp_path / "swiftlmd.log")[-1]
        assert os.read(terminal, 3) == b"202"  # stderr is no journal: no priorities there
    finally:
        os.close(terminal)
        os.close(its_end)


def test_lines_that_cannot_be_written_in_time_are_counted_and_cost_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_MAX_WAITING", 10)
    goes_on, log = threading.Event(), logging.getLogger("swiftlmd.x")

    class SlowDisk(logs.PlainFormatter):
        def format(self, record: logging.LogRecord) -> str:
            goes_on.wait(30)
            return super().format(record)

    monkeypatch.setattr(logs, "PlainFormatter", SlowDisk)
    with logs.logging_to(tmp_path, "info", {}):
        for number in range(1000):
            log.info("line %d", number)
        goes_on.set()
    written = lines(tmp_path / "swiftlmd.log")
    [told] = [line for line in written if "were lost" in line]
    assert " warning " in told
    lost = int(told.split(" lines were lost")[0].rsplit(" ", 1)[1])
    assert lost + len(written) - 1 == 1000
    assert len(written) <= 13


def test_a_log_that_cannot_be_rotated_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_MAX_BYTES", 500)
    for number in range(1, 6):
        (tmp_path / f"swiftlmd.log.{number}").mkdir()
    with logs.logging_to(tmp_path, "info", {}):
        for number in range(50):
            logging.getLogger("swiftlmd.x").info("line %d", number)
        logging.getLogger("swiftlmd.x").info("line %d that is none", "x")
        logging.getLogger("swiftlmd.x").info("the last")
    assert lines(tmp_path / "swiftlmd.log")[-1].endswith("the last")
    assert len(lines(tmp_path / "swiftlmd.log")) == 51


def test_the_journal_gets_priorities_on_every_line() -> None:
    record = logging.LogRecord("swiftlmd.x", logging.ERROR, "f", 1, "failed", None, failure())
    lines = logs.JournalFormatter().format(record).split("\n")
    assert lines[0] == "<3>swiftlmd.x failed"
    assert {line[:5] for line in lines[1:]} == {"<3>  "}


FORGED = "a\n2026-11-29T00:20:00.000Z error swiftlmd.x forged\r\x1b[31m\u202e"


def failure() -> tuple[type[BaseException], BaseException, None]:
    return ValueError, ValueError(FORGED), None


@pytest.mark.parametrize("formatter", [logs.PlainFormatter(), logs.JournalFormatter()])
def test_no_name_makes_a_line_of_its_own(formatter: logging.Formatter) -> None:
    record = logging.LogRecord("swiftlmd.x", logging.ERROR, "f", 1, "bad %s", (FORGED,), failure())
    text = formatter.format(record)
    assert not [line for line in text.split("\n")[1:] if line.startswith(("2026", "<3>2026"))]
    assert not {"\r", "\x1b", "\u202e"} & set(text)
    assert text.count("forged") == 2


def test_the_access_log_is_json_that_a_terminal_may_show() -> None:
    record = logging.LogRecord("swiftlmd.access", logging.INFO, "f", 1, "", None, None)
    record.fields = {"path": FORGED, "model": "\x9b\u2028\ud800"}
    line = logs.AccessFormatter().format(record)
    assert line.isprintable()
    assert json.loads(line)["path"] == FORGED


def test_last_lines_reach_into_rotated_files_and_keep_tracebacks_whole(tmp_path: Path) -> None:
    path = tmp_path / "swiftlmd.log"
    older = [f"{STAMP.format(1)} info a one", f"{STAMP.format(2)} error a two", "Traceback", "  x"]
    (tmp_path / "swiftlmd.log.1").write_text("\n".join(older) + "\n")
    path.write_text(f"{STAMP.format(3)} info a three\n")
    assert last_lines(path, 3, LineFilter()) == [
        "Traceback",
        "  x",
        f"{STAMP.format(3)} info a three",
    ]
    assert last_lines(path, 10, LineFilter(level="error")) == older[1:]


def test_lines_are_chosen_by_time_and_by_request(tmp_path: Path) -> None:
    path = tmp_path / "swiftlmd.log"
    path.write_text(
        f"{STAMP.format(1)} info a request_id=r1 began\n"
        f"{STAMP.format(5)} info a request_id=r2 began\n"
        f"{STAMP.format(9)} info a request_id=r1 ended\n"
    )
    since = datetime.fromisoformat(STAMP.format(4)).timestamp()
    assert [line[-8:] for line in last_lines(path, 9, LineFilter(since=since))] == [
        "r2 began",
        "r1 ended",
    ]
    assert len(last_lines(path, 9, LineFilter(request_id="r1"))) == 2


def test_a_request_is_shown_with_the_stack_of_what_failed_in_it(tmp_path: Path) -> None:
    path = tmp_path / "swiftlmd.log"
    failed = [f"{STAMP.format(1)} error a r1 failed", "  Traceback", "  ValueError: x"]
    others = [f"{STAMP.format(2)} error a r2 failed", "  Traceback", "  KeyError: r1"]
    path.write_text("\n".join([*failed, *others]) + "\n")
    assert last_lines(path, 9, LineFilter(request_id="r1")) == failed


async def test_following_goes_on_over_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "swiftlmd.log"
    path.write_text(f"{STAMP.format(0)} info a old\n")
    async with followed(path) as seen:
        with path.open("a") as file:
            file.write(f"{STAMP.format(1)} info a first\n")
        assert (await anext(seen)).endswith("first")
        path.rename(tmp_path / "swiftlmd.log.1")
        path.write_text(f"{STAMP.format(2)} info a second\n")
        assert (await anext(seen)).endswith("second")
        path.write_text(f"{STAMP.format(3)} info a z\n")  # emptied by somebody, and shorter
        assert (await anext(seen)).endswith("z")


@asynccontextmanager
async def followed(path: Path) -> AsyncIterator[AsyncIterator[str]]:
    with closing(Tail(path)) as tail:
        async with asyncio.timeout(30), aclosing(follow(tail, LineFilter())) as found:
            yield found


async def test_a_line_written_just_before_a_rotation_is_followed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "swiftlmd.log"
    path.touch()
    is_rotated, rotate = Tail._rotated, True

    def rotated(tail: Tail) -> bool:
        nonlocal rotate
        if rotate:  # the writer comes between two looks of the follower
            rotate = False
            path.write_text(f"{STAMP.format(1)} info a last\n")
            path.rename(tmp_path / "swiftlmd.log.1")
            path.write_text(f"{STAMP.format(2)} info a next\n")
        return is_rotated(tail)

    monkeypatch.setattr(Tail, "_rotated", rotated)
    async with followed(path) as found:
        assert (await anext(found)).endswith("last")
        assert (await anext(found)).endswith("next")


@pytest.mark.parametrize("rotates", [False, True])
async def test_what_is_written_between_the_last_lines_and_the_new_ones_comes_once(
    tmp_path: Path, rotates: bool
) -> None:
    path = tmp_path / "swiftlmd.log"
    path.write_text(f"{STAMP.format(0)} info a first\n")
    with closing(Tail(path)) as tail:
        with path.open("a") as file:
            file.write(f"{STAMP.format(1)} info a between\n")
        if rotates:
            path.rename(tmp_path / "swiftlmd.log.1")
            path.write_text(f"{STAMP.format(2)} info a next\n")
        last = last_lines(path, 9, LineFilter(), tail)
        async with asyncio.timeout(30), aclosing(follow(tail, LineFilter())) as added:
            come = [await anext(added) for _ in range(1 + rotates)]
    words = [line.rsplit(" ", 1)[1] for line in [*last, *come]]
    assert words == ["first", "between", *(["next"] if rotates else [])]
