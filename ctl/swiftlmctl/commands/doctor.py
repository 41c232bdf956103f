"""`doctor`: what is wrong and the command that mends it.

The daemon checks itself, in the context it runs in (a shell sees other devices, folders and
privacy grants); what surrounds it (service, versions, sockets) is checked here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from swiftlm_proto.exit_codes import CtlExit
from swiftlmctl.commands.options import Json

if TYPE_CHECKING:
    from swiftlm_proto import messages as m

Mac = Annotated[bool, typer.Option("--mac", help="Also what only a person at a Mac can confirm.")]


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(mac: Mac = False, json: Json = False) -> None:
    """Check the installation; 1 when something fails."""
    from swiftlmctl import output
    from swiftlmctl.doctor import checks, mac_checks

    found = checks.all_checks()
    if json:
        waiting = mac_checks.CHECKS if mac else ()
        output.show_json({"checks": output.plain(found), "mac": output.plain(waiting)})
    else:
        for check in found:
            _say(check)
        for item in mac_checks.CHECKS if mac else ():
            output.say(f"[ to do ] {item.topic}: expect {item.expect}\n          {item.how}")
    if any(check.status == "fail" for check in found):
        raise typer.Exit(int(CtlExit.FAILED))


def _say(check: m.DoctorCheck) -> None:
    from swiftlmctl import output

    output.say(f"[{check.status:^7}] {check.name}: {check.reason}")
    if check.fix and check.status != "pass":
        output.say(f"          {check.fix}")
