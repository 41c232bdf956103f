"""`--help` appears at once: nothing heavy is loaded for it. (A clock would be luck.)"""

from __future__ import annotations

import subprocess
import sys

import pytest

# Typer itself loads pydantic as soon as a verb has options; that much it costs.
HEAVY = {"rich", "grpclib", "betterproto2", "plistlib", "ssl"}


@pytest.mark.parametrize("words", [["--help"], ["service", "--help"], ["load", "--help"]])
def test_help_loads_nothing_heavy(words: list[str], room_path: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "swiftlmctl", *words],
        env={"PYTHONPATH": room_path, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Usage:" in done.stdout
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert loaded & HEAVY == set()
