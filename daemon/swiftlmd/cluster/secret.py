"""The group's secret: one file, the same on every host, made where the group is led."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from swiftlm_proto.paths import Paths


def secret_file(paths: Paths) -> Path:
    return paths.state / "cluster-secret"


def keep_secret(path: Path) -> None:
    """Makes one if there is none; other hosts get a copy from their owner. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(FileExistsError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(os.open(path, flags, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
