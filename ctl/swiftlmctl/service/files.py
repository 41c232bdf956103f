"""Writing a definition so that a supervisor never reads half of one."""

from __future__ import annotations

from pathlib import Path

from swiftlm_proto import user_files
from swiftlm_proto.exit_codes import CtlExit
from swiftlmctl.errors import CtlError


def write_if_changed(path: Path, content: bytes, mode: int = 0o644) -> bool:
    """Whether the file had to be written. launchd refuses a link: one is replaced by a file."""
    if not path.is_symlink() and path.is_file() and path.read_bytes() == content:
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            path.unlink()
        user_files.overwrite(path, content, mode=mode)
        path.chmod(mode)
    except OSError as e:
        raise CtlError(f"cannot write {path}: {e.strerror}", code=CtlExit.DENIED) from e
    return True
