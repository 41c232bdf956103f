"""Memory limits that the kernel enforces, one control group (version 1) per process.

Nothing happens where no group can be made: another system, version 2, or no right to do it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup/memory")


class Cages:
    """Use as a context manager: at its end no group is left."""

    def __init__(self) -> None:
        self._folders: dict[int, Path] = {}
        self._limited: set[int] = set()
        self.num_held = self.num_limited = self.kills = 0
        self.highest_bytes = 0  # that any of them was ever charged for

    def __enter__(self) -> Cages:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in list(self._folders):
            self._open(pid)

    def enter(self, pid: int) -> None:
        """From now on what the process takes is charged to a group of its own."""
        for other in [other for other in self._folders if not _lives(other)]:
            self._open(other)
        if pid in self._folders or not os.access(_ROOT / "cgroup.procs", os.W_OK):
            return
        folder = _ROOT / f"swiftlm-test-{pid}"
        folder.mkdir(exist_ok=True)
        self._folders[pid] = folder
        with contextlib.suppress(ProcessLookupError):
            (folder / "cgroup.procs").write_text(str(pid))
            self.num_held += 1

    def limit(self, pid: int, limit_bytes: int) -> None:
        """Past that the kernel kills it."""
        if folder := self._folders.get(pid):
            (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
            self.num_limited += pid not in self._limited
            self._limited.add(pid)

    def _open(self, pid: int) -> None:
        folder = self._folders.pop(pid)
        charged = int((folder / "memory.max_usage_in_bytes").read_text())
        self.highest_bytes = max(self.highest_bytes, charged)
        control = dict(line.split() for line in (folder / "memory.oom_control").open())
        self.kills += int(control.get("oom_kill", 0))
        self._limited.discard(pid)
        for left in (folder / "cgroup.procs").read_text().split():
            (_ROOT / "cgroup.procs").write_text(left)
        folder.rmdir()


def children(pid: int) -> list[int]:
    """Those that any of its threads has started."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    found: list[int] = []
    for each in lists:
        with contextlib.suppress(OSError):  # a thread that has just ended
            found += map(int, each.read_text().split())
    return found


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
