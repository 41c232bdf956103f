"""Why nobody answers on the admin socket, and the command that mends it."""

from __future__ import annotations

import json

from swiftlm_proto.exit_codes import CtlExit
from swiftlm_proto.paths import Paths
from swiftlmctl.errors import CtlError
from swiftlmctl.service import Phase, ServiceState, choose


def explain(paths: Paths) -> CtlError:
    return from_state(paths, choose(paths).state())


def from_state(paths: Paths, state: ServiceState) -> CtlError:
    """The error for a socket where nobody answers while the supervisor says `state`."""
    if reason := fatal_reason(paths):
        return CtlError(
            f"swiftlmd gave up: {reason}",
            hint="mend that, then `swiftlmctl start` (it clears the record)",
        )
    if state.phase is Phase.NOT_INSTALLED:
        return CtlError(
            "swiftlmd is not running and no service is installed",
            hint="`swiftlmctl service install` (starts at login) or `swiftlmd serve` in a terminal",
            code=CtlExit.NOT_INSTALLED,
        )
    if state.phase in (Phase.RUNNING, Phase.STARTING):
        process = f" as process {state.pid}" if state.pid else ""
        return CtlError(
            f"swiftlmd is starting{process} but does not answer on {paths.admin_socket}",
            hint="`swiftlmctl logs -n 50`, `swiftlmctl logs --stderr`",
            code=CtlExit.TIMEOUT,
        )
    if state.phase is Phase.FAILED:
        return CtlError(
            f"swiftlmd failed ({state.detail or 'no reason given'})",
            hint="`swiftlmctl logs --stderr -n 50`, then `swiftlmctl start`",
        )
    return CtlError("swiftlmd is not running", hint="`swiftlmctl start`", code=CtlExit.NOT_RUNNING)


def fatal_reason(paths: Paths) -> str:
    """The reason in `fatal.json`, which a daemon writes when a restart cannot help; "" without."""
    try:
        text = paths.fatal_file.read_text(encoding="utf-8")
    except OSError:
        return ""
    try:
        record = json.loads(text)
    except ValueError:
        return "its last words are unreadable"
    if not isinstance(record, dict):
        return "its last words are unreadable"
    return str(record.get("reason") or record.get("message") or "no reason recorded")
