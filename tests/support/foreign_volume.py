"""A folder as macOS leaves it on exFAT, NTFS and SMB: an AppleDouble file beside each other one."""

from __future__ import annotations

import struct
from pathlib import Path

# Magic, version 2, filler, two entries: Finder info (type 9) and resource fork (type 2).
_APPLE_DOUBLE = struct.pack(
    ">II16sHIIIIII", 0x00051607, 0x00020000, b"Mac OS X", 2, 9, 50, 3760, 2, 3810, 286
)


def add_apple_doubles(folder: Path) -> Path:
    for path in list(folder.iterdir()):
        if path.is_file() and not path.name.startswith("._"):
            (folder / f"._{path.name}").write_bytes(_APPLE_DOUBLE.ljust(4096, b"\0"))
    (folder / ".DS_Store").write_bytes(b"\0\0\0\1Bud1" + bytes(6140))
    return folder
