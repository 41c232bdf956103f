"""Which service manager this machine has.

`SWIFTLM_SERVICE_MANAGER` (launchd, systemd, none) decides for a test or for a container.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from swiftlm_proto.paths import Paths
from swiftlmctl.errors import CtlError
from swiftlmctl.service.base import ServiceManager
from swiftlmctl.service.commands import run
from swiftlmctl.service.job import job_for

CHOICES = ("launchd", "systemd", "none")


def choose(
    paths: Paths, environ: Mapping[str, str] | None = None, platform: str = sys.platform
) -> ServiceManager:
    env = os.environ if environ is None else environ
    name = env.get("SWIFTLM_SERVICE_MANAGER") or _found(platform)
    home = Path(env.get("HOME") or Path.home())
    if name == "launchd":
        from swiftlmctl.service.launchd import LaunchdAgent

        return LaunchdAgent(home, paths.logs, uid=_uid(env))
    if name == "systemd":
        from swiftlmctl.service.systemd import SystemdUnit

        config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
        return SystemdUnit(config / "systemd" / "user")
    if name == "none":
        from swiftlmctl.service.detached import DetachedDaemon

        return DetachedDaemon(job_for(paths, env), paths, environ=env)
    raise CtlError(f"SWIFTLM_SERVICE_MANAGER is {name!r}; it may be {', '.join(CHOICES)}")


def _found(platform: str) -> str:
    if platform == "darwin":
        return "launchd"
    # The program alone proves nothing: a container has it, and no manager behind it.
    if shutil.which("systemctl") and run(["systemctl", "--user", "show-environment"]).code == 0:
        return "systemd"
    return "none"


def _uid(env: Mapping[str, str]) -> int:
    # With sudo the user is somebody else than whoever owns the session.
    return 0 if env.get("SUDO_USER") else os.getuid()
