"""What killed jobs left beside the folders they were making, told from what others still write.

Such a folder is named `.NAME.PID.swiftlm-tmp` or `.NAME.PID-MORE.swiftlm-tmp`. Names are matched
whole: of the models `Llama-3` and `Llama-3.1-8B` neither may take the other's folder.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

TEMPORARY_SUFFIX = ".swiftlm-tmp"


def temporary_name(name: str, more: str = "") -> str:
    """What this process calls a folder that is to become, or was, `name`."""
    return f".{name}.{os.getpid()}{more and '-' + more}{TEMPORARY_SUFFIX}"


def remove_leftovers(parent: Path, name: str | None = None) -> None:
    """Deletes those whose process has ended, of one name or of all."""
    wanted = ".+" if name is None else re.escape(name)
    pattern = re.compile(rf"\.{wanted}\.(\d+)(?:-\w+)?{re.escape(TEMPORARY_SUFFIX)}", re.DOTALL)
    try:
        found = [(entry, pattern.fullmatch(entry.name)) for entry in parent.iterdir()]
    except OSError:
        return  # a folder that cannot be read has nothing that we could remove
    for folder, match in found:
        if match and not _is_alive(int(match[1])):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True  # somebody else's
    return True
