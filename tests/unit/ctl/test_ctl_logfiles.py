"""Log files as the daemon writes them: records, filters, rotation under a follower."""

from __future__ import annotations

import json
import logging.handlers
import os
from pathlib import Path

from swiftlmctl.commands.log_reader import Follower, Wanted, last, parse, records

LINES = """\
2026-11-28T09:30:00.000Z info swiftlmd.daemon ready
2026-11-28T09:30:01.500Z error swiftlmd.engines engine died model=x request=r7
Traceback (most recent call last):
  File "x.py", line 1
ValueError: no
2026-11-28T09:30:02.000Z debug swiftlmd.residency.residency checked
"""


def test_traceback_belongs_to_the_record_before_it() -> None:
    found = list(records(LINES.splitlines(), "swiftlmd.log"))
    assert [record.level for record in found] == ["info", "error", "debug"]
    assert found[1].text.endswith("ValueError: no")


def test_level_is_at_least() -> None:
    found = list(records(LINES.splitlines(), "swiftlmd.log"))
    wanted = Wanted(level="warning")
    assert [r.level for r in found if wanted.matches(r)] == ["error"]


def test_request_is_found_in_both_files(tmp_path: Path) -> None:
    (tmp_path / "swiftlmd.log").write_text(LINES)
    access = {"time": "2026-11-28T09:30:01.700Z", "request": "r7", "status": 500}
    (tmp_path / "access.log").write_text(json.dumps(access) + "\n")
    paths = [tmp_path / "swiftlmd.log", tmp_path / "access.log"]
    found = last(paths, Wanted(request="r7"), 10)
    assert [record.file for record in found] == ["swiftlmd.log", "access.log"]


def test_access_line_has_its_time_and_its_fields() -> None:
    text = '{"time": "2026-11-28T09:30:01.700Z", "route": "chat", "status": 200}'
    record = parse(text, "access.log")
    assert record.time == parse("2026-11-28T09:30:01.700Z info x", "y").time
    assert record.shown == "2026-11-28T09:30:01.700Z request route=chat status=200"


def test_since_is_seconds_of_the_epoch() -> None:
    record = parse("2026-11-28T09:30:01.500Z info x", "swiftlmd.log")
    assert record.time == 1795858201.5
    assert Wanted(since=1795858201.5).matches(record)
    assert not Wanted(since=1795858201.6).matches(record)


def test_last_reads_over_rotated_files_in_order(tmp_path: Path) -> None:
    path = tmp_path / "swiftlmd.log"
    for number, name in enumerate(("swiftlmd.log.2", "swiftlmd.log.1", "swiftlmd.log")):
        (tmp_path / name).write_text(f"2026-11-28T09:30:0{number}.000Z info n={number}\n")
    found = last([path], Wanted(), 2)
    assert [record.text[-3:] for record in found] == ["n=1", "n=2"]


def test_follower_loses_nothing_over_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "swiftlmd.log"
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=200, backupCount=50)
    handler.emit(logging.makeLogRecord({"msg": "2026-11-28T09:30:00.000Z info before"}))
    follower = Follower(path)
    seen = []
    for number in range(60):
        handler.emit(logging.makeLogRecord({"msg": f"2026-11-28T09:30:00.000Z info n={number}"}))
        if number % 2:
            seen += [record.text.rpartition("=")[2] for record in follower.poll()]
    handler.close()
    follower.close()
    assert (tmp_path / "swiftlmd.log.5").exists()  # it did rotate
    assert seen == [str(number) for number in range(60)]


def test_follower_waits_for_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    path = tmp_path / "swiftlmd.log"
    follower = Follower(path)
    assert follower.poll() == []
    path.write_text("2026-11-28T09:30:00.000Z info first\n")
    assert [record.level for record in follower.poll()] == ["info"]


def test_follower_starts_over_after_truncation(tmp_path: Path) -> None:
    path = tmp_path / "launchd.log"
    path.write_text("old words of some length\n")
    follower = Follower(path)
    os.truncate(path, 0)
    with open(path, "a") as file:
        file.write("new\n")
    assert [record.text for record in follower.poll()] == ["new"]


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "swiftlmd.log"
    path.write_text("")
    follower = Follower(path)
    with open(path, "a") as file:
        file.write("2026-11-28T09:30:00.000Z in")
        file.flush()
        assert follower.poll() == []
        file.write("fo whole\n")
    assert [record.level for record in follower.poll()] == ["info"]
