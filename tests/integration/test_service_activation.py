"""A daemon on a socket that its supervisor opened: clients wait in the queue while it starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from swiftlm_proto.paths import under

DAEMON = Path(__file__).resolve().parents[1] / "support" / "daemon_with_fake_engine.py"
# What systemd does between fork and exec: the descriptor to 3, and the pid of the very process.
ACTIVATE = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.set_inheritable(3, True); "
    "os.environ['LISTEN_PID'] = str(os.getpid()); os.execv(sys.executable, "
    "[sys.executable, *sys.argv[2:]])"
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def environ(tmp_path: Path, room_path: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "SWIFTLM_HOME": str(tmp_path),
        "SWIFTLM_SERVICE_MANAGER": "none",
        "PYTHONPATH": f"{room_path}:{DAEMON.parent}",
    }


def test_client_that_came_before_the_daemon_is_answered_by_it(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    path = under(tmp_path).admin_socket
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        asking = subprocess.Popen(
            [sys.executable, "-m", "swiftlmctl", "version", "--json"],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        number = listening.fileno()
        daemon = subprocess.Popen(
            [sys.executable, "-c", ACTIVATE, str(number), str(DAEMON), f"http.port={free_port()}"],
            env={**environ, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "control"},
            pass_fds=(number,),
        )
        try:
            out, _ = asking.communicate(timeout=60)
            assert '"daemon": {' in out
        finally:
            daemon.terminate()
            assert daemon.wait(60) == 0
    assert path.exists()  # the file is the supervisor's
