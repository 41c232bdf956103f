"""What `connect` changed, so that `--undo` can take it back: our entries, and nothing else.

One record for each client, written before the file is. A file that still is as we left it becomes
what it was, byte for byte, from the copy beside it; out of one that its program or its user has
written to since, our entries are taken one by one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from swiftlm_proto import user_files
from swiftlmctl.connect.edits import Unsafe
from swiftlmctl.connect.entries import (
    Entry,
    TakenOut,
    added,
    from_plain,
    is_blank,
    plain,
    taken_out,
)
from swiftlmctl.errors import CtlError


@dataclass(frozen=True, slots=True)
class UndoRecord:
    file: str
    backup: str  # a copy of what the file would be without us; "" = there would be none
    digest: str  # of what was written
    entries: list[Entry] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)  # made for the file, outermost first


@dataclass(frozen=True, slots=True)
class Undone:
    path: Path
    left: tuple[str, ...] = ()  # entries that were changed since, and stay


class UndoLedger:
    """Keeps its records in `folder`; the copies lie beside the files they were taken of."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def without_ours(self, client: str, path: Path) -> str:
        """The text of the client's file as it would be if `connect` had never written to it."""
        return _text(self._base(self._record(client, path), user_files.read(path)) or b"")

    def write(self, client: str, path: Path, text: str) -> Path | None:
        """Writes `text` to the client's file; the copy of what was there, if anything was."""
        record, current = self._record(client, path), user_files.read(path)
        base = self._base(record, current)
        backup = self._copy(path, base, record)
        target = path.resolve()
        missing = user_files.missing_folders(path.parent) + user_files.missing_folders(
            target.parent
        )
        folders = dict.fromkeys([*(record.folders if record else ()), *map(str, missing)])
        content = _bytes(text)
        self._keep(
            client,
            UndoRecord(
                str(path),
                str(backup or ""),
                _digest(content),
                added(path, _text(base or b""), text),
                list(folders),
            ),
        )
        for folder in (path.parent, target.parent):
            folder.mkdir(parents=True, exist_ok=True)
        user_files.replace(path, content, before=current)
        return backup

    def undo(self, client: str, path: Path | None = None) -> Undone:
        """Takes our entries out of the file; it is gone if it was not there before us."""
        record = self._record(client, path)
        if record is None:
            raise CtlError(f"{client} was not connected from here")
        found = Path(record.file)
        current = user_files.read(found)
        taken = _taken_out(record, current)
        if current is not None:
            if not record.backup and is_blank(found, taken.text):
                user_files.remove(found)
            elif taken.text != _text(current):
                user_files.replace(found, _bytes(taken.text), before=current)
        self._forget(client, record)
        return Undone(found, taken.left)

    def _base(self, record: UndoRecord | None, current: bytes | None) -> bytes | None:
        """The file as it would be without us; None = there would be none."""
        if record is None or current is None:
            return current
        try:
            text = _taken_out(record, current).text
        except CtlError:
            return current
        return None if not record.backup and is_blank(Path(record.file), text) else _bytes(text)

    def _copy(self, path: Path, base: bytes | None, record: UndoRecord | None) -> Path | None:
        """A copy of `base` beside the file: the one that is there if it holds just that."""
        if base is None:
            return None
        named = Path(record.backup) if record and record.backup else None
        if named is not None:
            if user_files.read(named) != base:
                user_files.overwrite(named, base)
            return named
        backup, number = path.with_name(f"{path.name}.before-swiftlm"), 1
        while (held := user_files.read(backup)) not in (None, base):
            number += 1
            backup = path.with_name(f"{path.name}.before-swiftlm-{number}")
        if held is None:
            mode = path.stat().st_mode & 0o777 if path.exists() else user_files.PRIVATE
            user_files.replace(backup, base, before=None, mode=mode)
        return backup

    def _record(self, client: str, path: Path | None) -> UndoRecord | None:
        file = self._file(client)
        content = user_files.read(file)
        if content is None:
            return None
        try:
            found = json.loads(content)
            return UndoRecord(**{**found, "entries": from_plain(found.get("entries", []))})
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            copies = sorted(path.parent.glob(f"{path.name}.before-swiftlm*")) if path else []
            raise CtlError(
                f"the record {file} cannot be read",
                hint=(f"the copy from before is {copies[0]}; " if copies else "")
                + "take swiftlm's entries out of the client's file by hand, then delete the record",
            ) from e

    def _keep(self, client: str, record: UndoRecord) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = json.dumps({**asdict(record), "entries": plain(record.entries)})
        user_files.overwrite(self._file(client), text.encode())

    def _forget(self, client: str, record: UndoRecord) -> None:
        if record.backup:
            with contextlib.suppress(FileNotFoundError):
                Path(record.backup).unlink()
        user_files.remove_folders(map(Path, record.folders))
        user_files.remove(self._file(client))

    def _file(self, client: str) -> Path:
        return self._folder / f"{client}.json"


def _taken_out(record: UndoRecord, current: bytes | None) -> TakenOut:
    """The file's text without us; raises CtlError where it cannot be told apart."""
    if current is None:
        return TakenOut("")
    before = user_files.read(Path(record.backup)) if record.backup else b""
    if _digest(current) == record.digest and before is not None:
        return TakenOut(_text(before), found=True)
    try:
        if not record.entries:
            raise Unsafe("swiftlm wrote nothing into it that could be told apart")
        return taken_out(Path(record.file), _text(current), record.entries)
    except Unsafe as e:
        copy = f"; the copy from before is {record.backup}" if record.backup else ""
        raise CtlError(
            f"{record.file} was changed since: {e}",
            hint=f"take swiftlm's entries out of it by hand{copy}",
        ) from e


def _text(content: bytes) -> str:
    """Any bytes come back as they were."""
    return content.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
