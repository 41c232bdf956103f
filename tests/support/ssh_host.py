"""A stand-in for `ssh`: the host `studio` is a home of its own on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent
_ROOMS = os.pathsep.join(str(_TESTS.parents[1] / room) for room in ("proto", "daemon", "engine"))
_SCRIPT = """#!/bin/sh
echo "$@" > {folder}/asked
while [ "$1" != -- ]; do shift; done
name=$2; shift 2
test "$name" = studio || {{ echo "ssh: Could not resolve hostname $name" >&2; exit 255; }}
export HOME={root} SWIFTLM_HOME={root} PYTHONPATH={rooms} SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22"
cat {folder}/banner 2>/dev/null
exec sh -c "$*"
"""


def ssh_to(root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on `ssh studio` runs in `root`; what its login prints is in `folder`/banner."""
    folder.mkdir()
    root.mkdir(exist_ok=True)
    (folder / "ssh").write_text(_SCRIPT.format(folder=folder, root=root, rooms=_ROOMS))
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
