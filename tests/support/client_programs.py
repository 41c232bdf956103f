"""Where the programs of clients are: in SWIFTLM_AGENTS (folders, colons between) or on the path."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

# One agent loops for ever when it dislikes an answer, and ignores SIGTERM.
DEADLINE_S = 240


def find(name: str, beside: str = "") -> Path:
    """The program's path; skips the test where it is not installed.

    `beside`: only that of the same folder will do, as for the node that must see its packages.
    """
    folders = os.environ.get("SWIFTLM_AGENTS", "")
    found = shutil.which(name, path=f"{folders}:{os.environ['PATH']}")
    if found is None or (beside and not Path(found).with_name(beside).exists()):
        pytest.skip(f"{name} is not installed; run `sh tests/clients/run.sh`")
    return Path(found)
