"""Reads and writes the configuration: through the daemon, or through its program while it is down.

`python -m swiftlmd config show|set|unset|validate` needs no running daemon; it prints the same
entries as the admin service does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from swiftlm_proto import messages as m
from swiftlm_proto.exit_codes import DaemonExit
from swiftlmctl import client
from swiftlmctl.errors import CtlError


def read(key: str) -> m.ConfigReply:
    """All options, or the one named `key`."""

    async def verb(daemon: client.Daemon) -> m.ConfigReply:
        return await daemon.admin.get_config(m.GetConfigRequest(key=key, defaults=True))

    only = ["--only", key] if key.startswith("model.") else []  # others are picked from all
    return _asked(verb, ["show", *only])


def write(key: str, value: str | None) -> m.ConfigReply:
    """Sets an option, or takes it out of the file (None)."""
    request = m.SetConfigRequest(key=key, value=value or "", unset=value is None)

    async def verb(daemon: client.Daemon) -> m.ConfigReply:
        return await daemon.admin.set_config(request)

    return _asked(verb, ["unset", key] if value is None else ["set", key, value])


def reload() -> m.ConfigReply | None:
    """What changed for the running daemon, which reads the file again; None if none runs."""
    if not client.is_running():
        return None

    async def verb(daemon: client.Daemon) -> m.ConfigReply:
        return await daemon.admin.reload_config(m.ReloadConfigRequest())

    reply = client.call(verb)
    client.check(reply.fault)
    return reply


def validate(file: Path | None = None) -> str:
    """What the daemon's program says about the file, or about another; raises `CtlError` when it
    is bad."""
    return _program(["validate", *(["--file", str(file)] if file else [])]).strip()


def refuse_broken(verb: str) -> None:
    """Raises `CtlError` with the line, before a daemon is stopped that could not start again."""
    try:
        done = _ran(["validate"])
    except (OSError, subprocess.TimeoutExpired):
        return  # the daemon's own start says what is wrong
    if done.returncode == DaemonExit.BAD_CONFIG:
        message = f"{done.stderr.strip()}\n`{verb}` changed nothing: no daemon would start with it"
        raise CtlError(message, hint="`swiftlmctl config edit`")


def _asked(
    verb: Callable[[client.Daemon], Awaitable[m.ConfigReply]], words: list[str]
) -> m.ConfigReply:
    if client.is_running():
        reply = client.call(verb)
        client.check(reply.fault)
        return reply
    found = json.loads(_program(words))
    entries = [m.ConfigEntry(**entry) for entry in found["options"]]
    return m.ConfigReply(entries=entries, path=found["path"])


def _program(words: list[str]) -> str:
    done = _ran(words)
    if done.returncode:
        bad = done.returncode == DaemonExit.BAD_CONFIG
        raise CtlError(
            done.stderr.strip() or f"swiftlmd config ended with code {done.returncode}",
            hint="`swiftlmctl config edit`" if bad else "",
        )
    return done.stdout


def _ran(words: list[str]) -> subprocess.CompletedProcess[str]:
    isolated = "-I" if sys.flags.isolated else "-P"  # nothing from where we were started
    return subprocess.run(
        [sys.executable, isolated, "-m", "swiftlmd", "config", *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
