"""The group's secret: one file, the same on every host, made where the group is led."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from pathlib import Path

from swiftlm_proto.paths import Paths


def secret_file(paths: Paths) -> Path:
    return paths.state / "cluster-secret"


def keep_secret(path: Path) -> None:
    """Makes one if there is none; other hosts get a copy from their owner. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.exists():
        return
    # Appears whole: a second daemon may look for it now, or this one end here.
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".secret-") as draft:  # 0600
        draft.write(secrets.token_hex(32))
        draft.flush()
        with contextlib.suppress(FileExistsError):
            os.link(draft.name, path)
