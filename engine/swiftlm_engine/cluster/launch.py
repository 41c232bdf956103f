"""Starts a follower: a child process here, or one that stands for it on another host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from swiftlm_engine.cluster.group import LOCAL, Group
from swiftlm_engine.cluster.remote_follower import hire_command
from swiftlm_engine.cluster.transport import BY_SSH

_MAX_WORDS = 64 << 10


def local_command(leader: str, rank: int, secret_file: Path) -> list[str]:
    join = ["--join", leader, "--rank", str(rank), "--secret-file", str(secret_file)]
    isolated = "-I" if sys.flags.isolated else "-P"
    engine = [sys.executable, isolated, "-X", "utf8", "-m", "swiftlm_engine", *join]
    return [*engine, "--parent", str(os.getpid())]


def start_follower(group: Group, rank: int, leader: str, version: str) -> subprocess.Popen[bytes]:
    """Its output goes where this process's does; that of one on another host stays there."""
    host = group.hosts[rank]
    agent = group.agents.get(host, "")
    if host in LOCAL and not agent:
        command = local_command(leader, rank, group.secret_file)
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=_environment(group, rank))
    asked = {"leader": leader, "rank": rank, "fingerprint": group.fingerprint, "version": version}
    command = hire_command(agent or f"{BY_SSH}{host}", asked, group.secret_file)
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)


def last_words(child: subprocess.Popen[bytes]) -> str:
    """How a follower ended, and why if it stood for one on another host."""
    if child.stderr is None:
        return f"ended with code {child.returncode}; why is in the log of this engine"
    lines = child.stderr.read(_MAX_WORDS).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"ended with code {child.returncode}"


def _environment(group: Group, rank: int) -> dict[str, str]:
    """NCCL wants a card for each rank: those of this machine take its first ones, in order."""
    if group.backend != "nccl":
        return dict(os.environ)
    card = sum(host in LOCAL for host in group.hosts[:rank])
    return os.environ | {"CUDA_VISIBLE_DEVICES": str(card)}
