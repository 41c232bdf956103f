"""What `connect` changed, so that `--undo` can take it back exactly.

One record for each client: the file, a copy of it from before (or that there was none), and the
digest of what was written. A file that somebody edited since is not overwritten.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from swiftlmctl.errors import CtlError


@dataclass(frozen=True, slots=True)
class UndoRecord:
    file: str
    backup: str  # "" = there was no file
    digest: str  # of what was written


class UndoLedger:
    """Keeps its records in `folder`; the copies lie beside the files they were taken of."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, client: str, path: Path, text: str) -> Path | None:
        """Writes `text` to the client's file; the copy of what was there, if anything was."""
        before = self._record(client)
        backup = before.backup if before is not None else self._copied(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, text)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        record = UndoRecord(str(path), backup, _digest(text))
        self._file(client).write_text(json.dumps(asdict(record)), encoding="utf-8")
        return Path(backup) if backup else None

    def undo(self, client: str) -> Path:
        """Puts the file back as it was before the first `write`."""
        record = self._record(client)
        if record is None:
            raise CtlError(f"{client} was not connected from here")
        path = Path(record.file)
        if path.exists() and _digest(path.read_text(encoding="utf-8")) != record.digest:
            raise CtlError(
                f"{path} was changed since",
                hint=f"the copy from before is {record.backup}"
                if record.backup
                else "there was no such file before; remove swiftlm's entries by hand",
            )
        if record.backup:
            os.replace(record.backup, path)
        else:
            path.unlink(missing_ok=True)
        self._file(client).unlink()
        return path

    def _copied(self, path: Path) -> str:
        if not path.exists():
            return ""
        backup = path.with_name(f"{path.name}.before-swiftlm")
        number = 1
        while backup.exists():
            number += 1
            backup = path.with_name(f"{path.name}.before-swiftlm-{number}")
        shutil.copy2(path, backup)
        return str(backup)

    def _record(self, client: str) -> UndoRecord | None:
        try:
            return UndoRecord(**json.loads(self._file(client).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def _file(self, client: str) -> Path:
        return self._folder / f"{client}.json"


def _replace(path: Path, text: str) -> None:
    """Through a link to the file it leads to, so that a dotfiles folder stays linked."""
    target = path.resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    if target.exists():
        os.chmod(temporary, target.stat().st_mode & 0o777)
    else:
        os.chmod(temporary, 0o600)  # it may come to hold a key
    os.replace(temporary, target)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
