"""Changes to files that belong to the user: shell files, other programs' settings, config.toml.

Promises: a file holds either its old or its new bytes, also after a kill at any line, a power cut
or on a full disk; a symbolic link stays and its target changes; mode, owner, encoding and line
ends stay; what another program wrote meanwhile is never overwritten; a folder is removed only by
whoever made it, and only while it is empty. Everything raises OSError with the file's name.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import stat
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

# A new file may come to hold a key.
PRIVATE = 0o600


class ChangedMeanwhile(OSError):
    """Another program wrote the file between our reading and our writing; nothing was changed."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EAGAIN, "another program is writing it; try again", str(path))


def read(path: Path) -> bytes | None:
    """The bytes of the file, through links; None when there is none."""
    try:
        target = _target(path)
        return target.read_bytes()
    except FileNotFoundError:
        return None


def replace(path: Path, content: bytes, *, before: bytes | None, mode: int = PRIVATE) -> None:
    """`path` holds `content`, if it still holds `before` (None = there is no such file).

    `mode` is for a new file; an old one keeps its own. The folder must exist.
    """
    target = _target(path)
    with contextlib.suppress(OSError):
        _remove_dead_drafts(target)
    draft = target.with_name(f".{target.name}.swiftlm-{os.getpid()}")
    try:
        _write_draft(draft, content, target, mode)
        if read(target) != before:
            raise ChangedMeanwhile(path)
        os.replace(draft, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise error if error.filename == str(path) else _named(error, path) from error
    _sync_folder(target.parent)


def overwrite(path: Path, content: bytes, *, mode: int = PRIVATE) -> None:
    """`path`, a file of our own, holds `content`, whatever was in it."""
    replace(path, content, before=read(path), mode=mode)


def remove(path: Path) -> None:
    """Removes the file; of a link the target, since that is what was written."""
    target = _target(path)
    target.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        _remove_dead_drafts(target)
    _sync_folder(target.parent)


def add_lines(path: Path, lines: Sequence[bytes], *, mode: int = 0o644) -> bool:
    """Appends those of `lines` that the file does not hold yet; whether it changed."""
    before = read(path)
    held = {_bare(line) for line in _whole_lines(before or b"")}
    missing = [line for line in lines if line not in held]
    if not missing:
        return False
    newline = _newline(before or b"")
    start = before or b""
    if start and not start.endswith(b"\n"):
        start += newline
    replace(path, start + b"".join(line + newline for line in missing), before=before, mode=mode)
    return True


def remove_lines(path: Path, lines: Sequence[bytes]) -> bool:
    """Takes out every line that equals one of `lines`, and not a byte else; whether it changed."""
    before = read(path)
    if before is None:
        return False
    unwanted = set(lines)
    after = b"".join(line for line in _whole_lines(before) if _bare(line) not in unwanted)
    if after == before:
        with contextlib.suppress(OSError):
            _remove_dead_drafts(_target(path))
        return False
    replace(path, after, before=before)
    return True


def missing_folders(folder: Path) -> list[Path]:
    """Those of the folder and its parents that are not there, outermost first."""
    missing = []
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = folder.parent
    return missing[::-1]


def remove_folders(folders: Iterable[Path]) -> None:
    """Removes those of the folders (made by us, outermost first) that are empty."""
    for folder in reversed(list(folders)):
        with contextlib.suppress(OSError):
            if not folder.is_symlink():
                folder.rmdir()


def _target(path: Path) -> Path:
    """The file that a chain of links leads to; raises for what is no ordinary file."""
    target = Path(os.path.realpath(path))
    try:
        status = target.lstat()
    except FileNotFoundError:
        return target
    except OSError as error:
        raise _named(error, path) from error
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not an ordinary file", str(path))
    return target


def _write_draft(draft: Path, content: bytes, target: Path, mode: int) -> None:
    """The new bytes beside the old ones, as safe on the disk and with the same rights."""
    old = _status(target)
    if old is not None:
        _refuse_unwritable(target, old)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, PRIVATE)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if old is None:
        os.chmod(draft, mode)
        return
    # Extended attributes and flags too, as far as this system has them.
    with contextlib.suppress(OSError):
        shutil.copystat(target, draft)
    now = time.time()
    os.utime(draft, (now, now))
    if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
        with contextlib.suppress(OSError):
            os.chown(draft, old.st_uid, old.st_gid)
    os.chmod(draft, stat.S_IMODE(old.st_mode))


def _status(target: Path) -> os.stat_result | None:
    try:
        return target.stat()
    except FileNotFoundError:
        return None


def _refuse_unwritable(target: Path, status: os.stat_result) -> None:
    """A rename would get round both: a file set read-only, and one with a second name."""
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "it is read-only", str(target))
    if status.st_nlink > 1:
        raise OSError(errno.EMLINK, "it has several names (hard links)", str(target))


def _remove_dead_drafts(target: Path) -> None:
    """What a killed process left beside the file."""
    prefix = f".{target.name}.swiftlm-"
    for draft in target.parent.glob(f"{glob.escape(prefix)}*"):
        number = draft.name.removeprefix(prefix)
        if number.isdigit() and not _lives(int(number)):
            draft.unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _sync_folder(folder: Path) -> None:
    """The rename itself survives a power cut; not every file system can say so."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _named(error: OSError, path: Path) -> OSError:
    return OSError(error.errno, error.strerror or str(error), str(path))


def _whole_lines(content: bytes) -> list[bytes]:
    """With their ends; only a line feed ends a line here, as for every shell."""
    return [line + b"\n" for line in content.split(b"\n")[:-1]] + [content.rpartition(b"\n")[2]]


def _bare(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")


def _newline(content: bytes) -> bytes:
    return b"\r\n" if b"\r\n" in content else b"\n"
