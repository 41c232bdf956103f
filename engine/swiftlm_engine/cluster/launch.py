"""Starts a follower: a child process here, or one that stands for it on another host."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from swiftlm_engine.cluster.group import LOCAL, Group
from swiftlm_engine.cluster.hire import hire_command

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


def start_follower(group: Group, rank: int, leader: str, version: str) -> subprocess.Popen[bytes]:
    """Its output goes where this process's does; that of one on an agent's host stays there."""
    host = group.hosts[rank]
    if agent := group.agents.get(host):
        asked = {"leader": leader, "rank": rank, "fingerprint": group.fingerprint}
        command = hire_command(agent, {**asked, "version": version}, group.secret_file)
    else:
        command = follower_command(host, leader, rank, group.secret_file)
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=_environment(group, rank))


def _environment(group: Group, rank: int) -> dict[str, str]:
    """NCCL wants a card for each rank: those of this machine take its first ones, in order."""
    if group.backend != "nccl":
        return dict(os.environ)
    card = sum(host in LOCAL for host in group.hosts[:rank])
    return os.environ | {"CUDA_VISIBLE_DEVICES": str(card)}
