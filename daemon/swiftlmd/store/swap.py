"""A finished folder takes the place of another: whole or not at all, whoever does the same."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from pathlib import Path

from swiftlm_engine.brain.leftovers import temporary_name

_TRIES = 20


def put_in_place(draft: Path, out: Path) -> None:
    """What was there goes only when the new one is ready to take its name; its own is free for an
    instant. Raises OSError; `draft` is where it was then.
    """
    for attempt in range(_TRIES):
        old = out.with_name(temporary_name(out.name, f"old{secrets.token_hex(4)}"))
        with contextlib.suppress(FileNotFoundError):
            out.rename(old)
        try:
            draft.rename(out)
            return
        except OSError:
            if attempt == _TRIES - 1 or not os.path.lexists(out):
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
