"""`doctor`: what is wrong and the command that mends it.

The daemon checks itself, in the context it runs in (a shell sees other devices, folders and
privacy grants); what surrounds it (service, versions, sockets) is checked here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swiftlm_proto.exit_codes import CtlExit
from swiftlmctl.commands.options import Json

if TYPE_CHECKING:
    from swiftlm_proto import messages as m
    from swiftlmctl.doctor.mac_record import MacRecord

Mac = Annotated[bool, typer.Option("--mac", help="Also run the checks that need a Mac.")]
Replay = Annotated[
    Path | None, typer.Option("--replay", help="Judge a file that `--mac --json` wrote elsewhere.")
]


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(mac: Mac = False, json: Json = False, replay: Replay = None) -> None:
    """Check the installation; 1 when something fails."""
    from swiftlmctl import output
    from swiftlmctl.doctor import checks, mac_checks, mac_verdicts

    found = [] if replay else checks.all_checks()
    record = _record(replay, found) if replay or (mac and sys.platform == "darwin") else None
    verdicts = mac_verdicts.verdicts(record) if record else []
    if json:
        waiting = mac_checks.CHECKS if mac else ()
        report = {"checks": output.plain(found), "mac": output.plain(waiting)}
        recorded = record.to_json() | {"verdicts": output.plain(verdicts)} if record else {}
        output.show_json(report | recorded)
    else:
        for check in (*verdicts, *found):
            _say(check)
        for item in mac_checks.CHECKS if mac else ():
            output.say_wrapped(f"[ to do ] {item.topic}: expect {item.expect}", indent=10)
            output.say_wrapped(f"          {item.how}", indent=0)
    if any(check.status == "fail" for check in (*verdicts, *found)):
        raise typer.Exit(int(CtlExit.FAILED))


def _record(replay: Path | None, found: list[m.DoctorCheck]) -> MacRecord:
    from swiftlmctl import output
    from swiftlmctl.doctor import checks, mac_record
    from swiftlmctl.errors import CtlError

    if replay is None:
        return mac_record.record(checks.daemon_status(), output.plain(found), os.getuid())
    try:
        return mac_record.read_record(replay)
    except (OSError, ValueError, TypeError) as error:
        raise CtlError(f"cannot read {replay}: {error}") from error


def _say(check: m.DoctorCheck) -> None:
    from swiftlmctl import output

    output.say_wrapped(f"[{check.status:^7}] {check.name}: {check.reason}", indent=10)
    if check.fix and check.status != "pass":
        output.say_wrapped(f"          {check.fix}", indent=0)
