"""Chats of the page, kept for those who ask for it: SQLite with an index of their words.

A chat lies in a space; who may use which space is decided by the caller. Every change gets the
next number of its space, so that a page asks only for what is new to it. Deleting overwrites the
text; the chat's id alone stays, so that other pages delete their copies too. Each method opens
its own connection and blocks: call it in a thread.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]  # Any: JSON as the page wrote it

_BUSY_S = 10.0
_MAX_CHATS = 20_000  # of one space
_ANSWER_BYTES = 4 << 20  # of one list of changes; the rest comes with the next
_MOST_FOUND = 50
_INDEXED = 3  # characters that the index needs to find anything
_TABLES = """
CREATE TABLE IF NOT EXISTS chats (
  space TEXT NOT NULL, id TEXT NOT NULL, number INTEGER NOT NULL, body TEXT,
  PRIMARY KEY (space, id));
CREATE UNIQUE INDEX IF NOT EXISTS changes ON chats (space, number);
CREATE TABLE IF NOT EXISTS messages (
  number INTEGER PRIMARY KEY, space TEXT NOT NULL, chat TEXT NOT NULL, id TEXT NOT NULL,
  body TEXT NOT NULL, words TEXT NOT NULL, UNIQUE (space, chat, id));
CREATE TABLE IF NOT EXISTS sharing (key TEXT PRIMARY KEY);
"""
_INDEX = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS found USING fts5("
    "words, content='messages', content_rowid='number', tokenize='trigram')"
)


class TooManyChats(Exception):
    """The space holds as many as it may."""


class ChatIsGone(Exception):
    """It was deleted, perhaps by another page."""


@dataclass(frozen=True, slots=True)
class ChatChanges:
    number: int  # ask for what comes after it
    chats: list[Json]  # whole ones, and {"id", "gone": true}
    more: bool


class ChatStore:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._has_index = True

    def put(self, space: str, chat_id: str, body: Json, messages: list[Json], revive: bool) -> int:
        """Takes over a chat and those of its messages that are new or changed; its number.

        Raises ChatIsGone for a deleted one unless `revive`, and TooManyChats."""
        with self._writing() as base:
            row = base.execute(
                "SELECT body FROM chats WHERE space = ? AND id = ?", (space, chat_id)
            ).fetchone()
            if row is not None and row[0] is None and not revive:
                raise ChatIsGone
            if row is None:
                self._check_room(base, space)
            number = _next(base, space)
            base.execute(
                "INSERT INTO chats VALUES (?, ?, ?, ?) ON CONFLICT (space, id) "
                "DO UPDATE SET number = excluded.number, body = excluded.body",
                (space, chat_id, number, json.dumps(body)),
            )
            for message in messages:
                self._put_message(base, space, chat_id, message)
            return number

    def delete(self, space: str, chat_id: str) -> int:
        """Overwrites what was said; the id stays as a mark for other pages."""
        with self._writing() as base:
            self._delete_messages(base, space, chat_id)
            number = _next(base, space)
            base.execute(
                "INSERT INTO chats VALUES (?, ?, ?, NULL) ON CONFLICT (space, id) "
                "DO UPDATE SET number = excluded.number, body = NULL",
                (space, chat_id, number),
            )
        self._forget_words()
        return number

    def delete_all(self, space: str) -> None:
        """The whole space, without a mark: pages keep their own copies."""
        with self._writing() as base:
            for (chat_id,) in base.execute(
                "SELECT id FROM chats WHERE space = ?", (space,)
            ).fetchall():
                self._delete_messages(base, space, chat_id)
            base.execute("DELETE FROM chats WHERE space = ?", (space,))
        self._forget_words()

    def changes(self, space: str, since: int) -> ChatChanges:
        """What has changed after number `since`, the oldest change first."""
        with closing(self._open()) as base:
            rows = base.execute(
                "SELECT id, number, body FROM chats WHERE space = ? AND number > ? ORDER BY number",
                (space, since),
            )
            chats: list[Json] = []
            size, number = 0, since
            for chat_id, number_of_chat, body in rows:
                if size > _ANSWER_BYTES:
                    return ChatChanges(number, chats, more=True)
                chat, weight = self._whole(base, space, chat_id, body)
                chats.append(chat)
                size += weight
                number = number_of_chat
            return ChatChanges(number, chats, more=False)

    def search(self, space: str, words: str) -> list[Json]:
        """Messages that hold the words, the newest first: {"chat", "message", "text"}."""
        with closing(self._open()) as base:
            if self._has_index and len(words) >= _INDEXED:
                quoted = '"' + words.replace('"', '""') + '"'
                query = (
                    "SELECT m.chat, m.id, snippet(found, 0, '', '', '…', 24) FROM found "
                    "JOIN messages m ON m.number = found.rowid "
                    "WHERE found MATCH ? AND m.space = ? ORDER BY m.number DESC LIMIT ?"
                )
                rows = base.execute(query, (quoted, space, _MOST_FOUND)).fetchall()
            else:
                query = (
                    "SELECT chat, id, substr(words, max(1, instr(lower(words), lower(?1)) - 40), "
                    "120) FROM messages WHERE space = ?2 AND instr(lower(words), lower(?1)) "
                    "ORDER BY number DESC LIMIT ?3"
                )
                rows = base.execute(query, (words, space, _MOST_FOUND)).fetchall()
        return [{"chat": chat, "message": message, "text": text} for chat, message, text in rows]

    def sharing(self) -> list[str]:
        """The keys that use the owner's chats."""
        with closing(self._open()) as base:
            return [key for (key,) in base.execute("SELECT key FROM sharing ORDER BY key")]

    def share_with(self, keys: list[str]) -> None:
        with self._writing() as base:
            base.execute("DELETE FROM sharing")
            base.executemany("INSERT OR IGNORE INTO sharing VALUES (?)", [(key,) for key in keys])

    def _check_room(self, base: sqlite3.Connection, space: str) -> None:
        (count,) = base.execute("SELECT count(*) FROM chats WHERE space = ?", (space,)).fetchone()
        if count >= _MAX_CHATS:
            raise TooManyChats

    def _put_message(
        self, base: sqlite3.Connection, space: str, chat_id: str, message: Json
    ) -> None:
        self._delete_messages(base, space, chat_id, str(message["id"]))
        words = str(message.get("text") or "")
        cursor = base.execute(
            "INSERT INTO messages (space, chat, id, body, words) VALUES (?, ?, ?, ?, ?)",
            (space, chat_id, str(message["id"]), json.dumps(message), words),
        )
        if self._has_index:
            base.execute(
                "INSERT INTO found (rowid, words) VALUES (?, ?)", (cursor.lastrowid, words)
            )

    def _delete_messages(
        self, base: sqlite3.Connection, space: str, chat_id: str, message_id: str | None = None
    ) -> None:
        rows = base.execute(
            "SELECT number, words FROM messages "
            "WHERE space = ? AND chat = ? AND id = ifnull(?, id)",
            (space, chat_id, message_id),
        ).fetchall()
        for number, words in rows:
            if self._has_index:
                base.execute(
                    "INSERT INTO found (found, rowid, words) VALUES ('delete', ?, ?)",
                    (number, words),
                )
            base.execute("DELETE FROM messages WHERE number = ?", (number,))

    def _whole(
        self, base: sqlite3.Connection, space: str, chat_id: str, body: str | None
    ) -> tuple[Json, int]:
        if body is None:
            return {"id": chat_id, "gone": True}, 0
        rows = base.execute(
            "SELECT body FROM messages WHERE space = ? AND chat = ? ORDER BY number",
            (space, chat_id),
        ).fetchall()
        weight = len(body) + sum(len(text) for (text,) in rows)
        return {**json.loads(body), "messages": [json.loads(text) for (text,) in rows]}, weight

    def _forget_words(self) -> None:
        """The index keeps pieces of deleted words until its parts are merged."""
        if not self._has_index:
            return
        with self._writing() as base:
            base.execute("INSERT INTO found (found) VALUES ('optimize')")

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with closing(self._open()) as base:
            base.execute("BEGIN IMMEDIATE")
            try:
                yield base
            except BaseException:
                base.rollback()
                raise
            base.commit()

    def _open(self) -> sqlite3.Connection:
        if not self._path.exists():  # SQLite would make it readable for everybody
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._path.touch(0o600)
        base = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
        # What is deleted is overwritten, also in the journal's place.
        base.executescript("PRAGMA secure_delete = ON; PRAGMA journal_mode = TRUNCATE;" + _TABLES)
        try:
            base.execute(_INDEX)
        except sqlite3.OperationalError:  # a SQLite without FTS5 or its trigrams: read all
            self._has_index = False
        return base


def _next(base: sqlite3.Connection, space: str) -> int:
    query = "SELECT ifnull(max(number), 0) + 1 FROM chats WHERE space = ?"
    (number,) = base.execute(query, (space,)).fetchone()
    return int(number)
