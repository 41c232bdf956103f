"""Whether macOS lets the service reach the local network: since 15 it asks once, and may forbid it
to an agent without a word. Terminal and SSH are exempt, so only the daemon itself can tell."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable

from swiftlm_proto import messages as m

_PORT, _PATIENCE_S = 53, 2.0  # any port: a refusal is an answer too
_ROUTE = ["/sbin/route", "-n", "get", "default"]

Connect = Callable[[str], int]


def check(route: Callable[[], str] | None = None, connect: Connect | None = None) -> m.DoctorCheck:
    """Asks the gateway, which is a neighbour on every network; takes two seconds at most."""
    found = re.search(r"gateway: (\d+\.\d+\.\d+\.\d+)$", (route or _route)(), re.M)
    if found is None:
        return _check("pass", "this Mac is in no network of IPv4")
    gateway = found[1]
    code = (connect or _connect)(gateway)
    if code == errno.EHOSTUNREACH:
        fix = (
            "System Settings, Privacy & Security, Local Network: allow "
            f"{os.path.realpath(sys.executable)}, then `swiftlmctl restart`"
        )
        reason = f"macOS forbids the service to reach {gateway}: no other Mac can join a group"
        return _check("warn", reason, fix)
    if code in (0, errno.ECONNREFUSED, errno.ECONNRESET):
        return _check("pass", f"{gateway} answers the service")
    return _check("pass", f"{gateway} does not answer ({os.strerror(code)}), and is not forbidden")


def _route() -> str:
    try:
        done = subprocess.run(_ROUTE, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _connect(host: str) -> int:
    """The error's number; 0 for none."""
    with socket.socket() as probe:
        probe.settimeout(_PATIENCE_S)
        try:
            probe.connect((host, _PORT))
        except TimeoutError:
            return errno.ETIMEDOUT
        except OSError as error:
            return error.errno or errno.EIO
    return 0


def _check(status: str, reason: str, fix: str = "") -> m.DoctorCheck:
    return m.DoctorCheck(name="local network", status=status, reason=reason, fix=fix, mac_only=True)
