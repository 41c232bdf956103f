"""Who started the daemon, and what it is told: launchd, systemd or nobody.

launchd restarts on any exit code but 0 and has no limit of its own, so a failure that a restart
cannot mend is written to fatal.json and left with 0; elsewhere the real code is returned.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from swiftlm_proto.exit_codes import DaemonExit
from swiftlmd.config.edit import write_atomically

_FATAL = (DaemonExit.NO_DEVICE, DaemonExit.NOT_PERMITTED, DaemonExit.BAD_CONFIG)


class Supervisor(StrEnum):
    LAUNCHD = "launchd"
    SYSTEMD = "systemd"
    NONE = "none"


def find_supervisor(environ: Mapping[str, str]) -> Supervisor:
    """By what launchd and systemd set for their jobs. A terminal inherits other service names."""
    if environ.get("XPC_SERVICE_NAME", "").endswith("swiftlmd"):
        return Supervisor.LAUNCHD
    started_by_systemd = environ.get("SYSTEMD_EXEC_PID") == str(os.getpid())
    if "NOTIFY_SOCKET" in environ or started_by_systemd:
        return Supervisor.SYSTEMD
    return Supervisor.NONE


def leave_with(code: DaemonExit, reason: str, supervisor: Supervisor, fatal_file: Path) -> int:
    """The code to exit with; what a restart cannot mend is recorded for `swiftlmctl`."""
    if code in _FATAL and supervisor is Supervisor.LAUNCHD:
        record_fatal(fatal_file, code, reason)
        return DaemonExit.STAY_DOWN
    return code


def record_fatal(fatal_file: Path, code: int, reason: str) -> None:
    """Why the daemon stays down; `swiftlmctl start` removes the file."""
    record = {"code": int(code), "reason": reason, "at": time.time(), "pid": os.getpid()}
    write_atomically(fatal_file, json.dumps(record) + "\n")


class Notifier:
    """Tells systemd how the start goes (sd_notify); says nothing elsewhere."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=finishing running requests")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # A leading @ stands for the abstract namespace's zero byte.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.setblocking(False)
                channel.sendto(message.encode(), address)
        except OSError:
            return  # the supervisor will find out by itself
