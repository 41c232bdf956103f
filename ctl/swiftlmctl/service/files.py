"""Writing a definition so that a supervisor never reads half of one."""

from __future__ import annotations

import os
from pathlib import Path

from swiftlm_proto.exit_codes import CtlExit
from swiftlmctl.errors import CtlError


def write_if_changed(path: Path, content: bytes, mode: int = 0o644) -> bool:
    """Whether the file had to be written: into a temporary file, synced, renamed over the old."""
    if not path.is_symlink() and path.is_file() and path.read_bytes() == content:
        return False
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except OSError as e:
        temporary.unlink(missing_ok=True)
        raise CtlError(f"cannot write {path}: {e.strerror}", code=CtlExit.DENIED) from e
    return True
