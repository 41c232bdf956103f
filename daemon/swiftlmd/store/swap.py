"""A finished folder takes the place of another: whole or not at all, whoever does the same."""

from __future__ import annotations

import contextlib
import errno
import itertools
import secrets
import shutil
from pathlib import Path

from swiftlm_engine.brain.leftovers import temporary_name

_TRIES = 100


def put_in_place(draft: Path, out: Path) -> None:
    """What was there goes only when the new one is ready to take its name; its own is free for an
    instant. Raises OSError; `draft` is where it was then.
    """
    for attempt in itertools.count():
        old = out.with_name(temporary_name(out.name, f"old{secrets.token_hex(4)}"))
        with contextlib.suppress(FileNotFoundError):
            out.rename(old)
        try:
            draft.rename(out)
            return
        except OSError as error:
            # Another one put its own there in between: ours is as good, and comes after it.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or attempt == _TRIES:
                with contextlib.suppress(OSError):
                    old.rename(out)  # better the old one than none
                raise
        finally:
            discard(old)


def discard(folder: Path) -> None:
    """Of a link the link alone."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)
