"""`logs`: the daemon's own records, whether it runs or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from swiftlm_proto.exit_codes import CtlExit
from swiftlmctl.commands.options import Json

if TYPE_CHECKING:
    from pathlib import Path

    from swiftlmctl.commands.log_reader import Follower, LogRecord, Wanted

_POLL_S = 0.2

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with new records.")]
Lines = Annotated[int, typer.Option("--lines", "-n", min=0, help="How many; 0 = all.")]
Since = Annotated[str, typer.Option("--since", help="10m, 2h, or 2026-11-27T12:00.")]
Level = Annotated[str, typer.Option("--level", help="At least: debug, info, warning, error.")]
Request = Annotated[str, typer.Option("--request", help="Only records that name this request.")]
Stderr = Annotated[
    bool, typer.Option("--stderr", help="What was written outside the log: crashes, aborts.")
]


def register(app: typer.Typer) -> None:
    app.command()(logs)


def logs(
    follow: Follow = False,
    lines: Lines = 50,
    since: Since = "",
    level: Level = "",
    request: Request = "",
    stderr: Stderr = False,
    json: Json = False,
) -> None:
    """Show the daemon's log, also when it is down."""
    from swiftlm_proto.paths import locate
    from swiftlmctl import output
    from swiftlmctl.commands import log_reader
    from swiftlmctl.service.job import STDERR_LOG

    wanted = log_reader.Wanted(_level(level), _since(since), request)
    if stderr and (level or since):  # no line there would match
        output.warn("lines outside the log have neither time nor level: all are shown")
        wanted = log_reader.Wanted(request=request)
    folder = locate().logs
    names = (STDERR_LOG,) if stderr else ("swiftlmd.log", "access.log")
    paths = [folder / name for name in names]
    if not any(path.exists() for path in paths) and not follow:
        _without_files(paths, wanted, lines, json)
        return
    followers = [log_reader.Follower(path) for path in paths] if follow else []
    for record in log_reader.last(paths, wanted, lines):
        _show(record, json)
    if follow:
        _follow(followers, wanted, json)


def _follow(followers: list[Follower], wanted: Wanted, json: bool) -> None:
    import time

    try:
        while True:
            news = [record for follower in followers for record in follower.poll()]
            for record in sorted(news, key=lambda record: record.time):
                if wanted.matches(record):
                    _show(record, json)
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        return
    finally:
        for follower in followers:
            follower.close()


def _show(record: LogRecord, json: bool) -> None:
    from swiftlmctl import output

    if json:
        output.show_json_line(record)
    elif output.on_terminal() and record.level in ("warning", "error", "critical"):
        colour = 33 if record.level == "warning" else 31
        output.say_in(colour, record.shown)
    else:
        output.say(record.shown)


def _without_files(paths: list[Path], wanted: Wanted, lines: int, json: bool) -> None:
    """A systemd unit may log to the journal only."""
    import os
    import shutil

    from swiftlmctl.errors import CtlError
    from swiftlmctl.service.job import UNIT

    journal = shutil.which("journalctl")
    if journal is None:
        raise CtlError(
            f"no log in {paths[0].parent} yet",
            hint="`swiftlmctl status` says whether the daemon has ever run",
        )
    words = [journal, "--user", "--unit", UNIT, "--no-pager"]
    words += ["--lines", str(lines)] if lines else []
    words += ["--since", f"@{wanted.since:.0f}"] if wanted.since else []
    words += ["--priority", wanted.level] if wanted.level else []
    words += ["--grep", wanted.request] if wanted.request else []
    words += ["--output", "json"] if json else []
    os.execv(journal, words)


def _level(text: str) -> str:
    from swiftlmctl.commands import log_reader
    from swiftlmctl.errors import CtlError

    name = log_reader.level_named(text)
    if text and not name:
        raise CtlError(
            f"no level {text!r}; there are debug, info, warning, error", code=CtlExit.USAGE
        )
    return name


def _since(text: str) -> float:
    """An age or a moment, as seconds since the epoch."""
    import datetime
    import time

    from swiftlmctl.commands.durations import seconds

    if not text:
        return 0.0
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return time.time() - seconds(text)
