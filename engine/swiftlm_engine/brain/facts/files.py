"""Reads the small files of a model folder: regular files only, and never more than was meant.

A folder may be anybody's: a pipe never ends, a device has effects, a file may be as large as the
disk.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from swiftlm_engine.brain.facts.errors import LyingHeader

CONFIG_BYTES = 32 << 20
INDEX_BYTES = 128 << 20


def weight_files(folder: Path, pattern: str = "*.safetensors") -> list[Path]:
    """The folder's weight files in order, without what begins with a dot.

    macOS keeps a small `._NAME` beside each file on exFAT, NTFS and SMB volumes: it ends as the
    file does, and holds no weights.
    """
    return sorted(path for path in folder.glob(pattern) if not path.name.startswith("."))


def read_bounded(path: Path, most: int) -> bytes:
    """The whole file. Raises OSError, and LyingHeader for what is no file of a model."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise LyingHeader(
                path, f"{path.name} has {size:,} bytes, more than the {most:,} that it may have"
            )
        return file.read(most)


def open_regular(path: Path) -> BinaryIO:
    """Never waits for the other end of a pipe."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise LyingHeader(path, f"{path.name} is not a regular file")
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):  # replaced since
        os.close(handle)
        raise LyingHeader(path, f"{path.name} is not a regular file")
    return os.fdopen(handle, "rb")
