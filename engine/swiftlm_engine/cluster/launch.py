"""Starts a follower: a child process here, or one through ssh on another host."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from swiftlm_engine.cluster.group import LOCAL

# ssh must fail rather than ask, and notice a dead network by itself.
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5")


def follower_command(host: str, leader: str, rank: int, secret_file: Path) -> list[str]:
    """The installation is at the same place on every host, and so are the secret and the models."""
    join = ["--join", leader, "--rank", str(rank), "--secret-file", str(secret_file)]
    isolated = ["-I"] if sys.flags.isolated else []
    engine = [sys.executable, *isolated, "-X", "utf8", "-m", "swiftlm_engine", *join]
    if host in LOCAL:
        return [*engine, "--parent", str(os.getpid())]
    return [*SSH, "--", host, shlex.join(engine)]


def start_follower(host: str, leader: str, rank: int, secret_file: Path) -> subprocess.Popen[bytes]:
    """Its output goes where this process's does."""
    command = follower_command(host, leader, rank, secret_file)
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)
