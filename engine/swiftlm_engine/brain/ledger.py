"""One ledger: every byte is priced before it is taken, given back once, and held against what the
kernel measures.

The ledger of an engine counts that process; the daemon's counts all of them. It never blocks and
never frees anything itself: who holds a reservation releases it. Safe to use from any thread.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any


class EntryKind(StrEnum):
    """What bytes are for; the order is the order of every table."""

    WEIGHTS = "weights"
    EXPERTS = "experts"
    IMAGES = "image tower"
    KV = "kv"
    SCRATCH = "scratch"
    PREFIX_CACHE = "prefix cache"
    BUFFER_POOL = "buffer pool"
    WRITE_BUFFERS = "write buffers"
    PROCESS = "process"
    PAGE_CACHE = "page cache"
    RESERVE = "reserve"


class NotEnoughMemory(Exception):
    """The ledger's limit leaves no room. All sizes in bytes."""

    def __init__(self, kind: EntryKind, needed: int, available: int) -> None:
        self.kind, self.needed, self.available = kind, needed, available
        super().__init__(
            f"{kind} needs {_size(needed)}, {_size(available)} available, "
            f"{_size(needed - available)} short"
        )

    @property
    def shortfall(self) -> int:
        return self.needed - self.available


@dataclass(frozen=True, slots=True)
class Measured:
    """What MLX and the kernel say. None = not known on this machine."""

    active_bytes: int | None = None
    pool_bytes: int | None = None
    peak_bytes: int | None = None
    footprint_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of memory: what is priced, and what was measured where that can be told apart."""

    kind: EntryKind
    priced_bytes: int
    measured_bytes: int | None = None
    entries: int = 0


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """The ledger at one moment. `ratio` is measured footprint over priced bytes."""

    rows: tuple[Row, ...]
    priced_bytes: int
    limit_bytes: int | None
    measured: Measured
    ratio: float | None

    @property
    def available_bytes(self) -> int | None:
        return None if self.limit_bytes is None else self.limit_bytes - self.priced_bytes

    def to_json(self) -> dict[str, Any]:  # Any: the shape of a JSON document
        return {
            "rows": [
                {
                    "kind": row.kind.value,
                    "priced_bytes": row.priced_bytes,
                    "measured_bytes": row.measured_bytes,
                    "entries": row.entries,
                }
                for row in self.rows
            ],
            "priced_bytes": self.priced_bytes,
            "limit_bytes": self.limit_bytes,
            "available_bytes": self.available_bytes,
            "active_bytes": self.measured.active_bytes,
            "pool_bytes": self.measured.pool_bytes,
            "peak_bytes": self.measured.peak_bytes,
            "footprint_bytes": self.measured.footprint_bytes,
            "ratio": self.ratio,
        }


@dataclass(slots=True, eq=False)
class Reservation:
    """Bytes taken out of the ledger until `release`. Releasing twice is harmless."""

    kind: EntryKind
    owner: str
    num_bytes: int
    _ledger: Ledger = field(repr=False)

    def resize(self, num_bytes: int) -> None:
        """Raises NotEnoughMemory and stays as it was when the growth does not fit."""
        self._ledger._resize(self, num_bytes)

    def release(self) -> None:
        self._ledger._release(self)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.release()


class Ledger:
    """Prices by kind and owner under one limit (None = counted, not limited)."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._limit = limit_bytes
        self._lock = threading.Lock()  # guards everything below; never held while calling out
        self._entries: dict[int, Reservation] = {}
        self._priced = 0
        self._measured = Measured()

    @property
    def limit_bytes(self) -> int | None:
        return self._limit

    @property
    def priced_bytes(self) -> int:
        return self._priced

    @property
    def available_bytes(self) -> int | None:
        """Room under the limit; negative after the limit was lowered below what is held."""
        with self._lock:
            return self._available()

    def set_limit(self, limit_bytes: int | None) -> None:
        """Nothing that is held is taken back; new reservations see the new limit."""
        with self._lock:
            self._limit = limit_bytes

    def reserve(
        self, kind: EntryKind, num_bytes: int, owner: str = "", *, force: bool = False
    ) -> Reservation:
        """Take bytes before they are allocated; raises NotEnoughMemory unless forced."""
        if num_bytes < 0:
            raise ValueError(f"cannot reserve {num_bytes} bytes")
        with self._lock:
            if not force:
                self._check(kind, num_bytes)
            entry = Reservation(kind, owner, num_bytes, self)
            self._entries[id(entry)] = entry
            self._priced += num_bytes
            return entry

    def record(self, measured: Measured) -> None:
        """Keep the newest measurement beside the prices."""
        with self._lock:
            self._measured = measured

    def owned_bytes(self, owner: str) -> int:
        """What one model or request is priced at."""
        with self._lock:
            return sum(e.num_bytes for e in self._entries.values() if e.owner == owner)

    def release_owner(self, owner: str) -> int:
        """Give back all of an owner's bytes (its process is gone); returns how many."""
        with self._lock:
            entries = [e for e in self._entries.values() if e.owner == owner]
        freed = sum(entry.num_bytes for entry in entries)
        for entry in entries:
            self._release(entry)
        return freed

    def snapshot(self) -> LedgerSnapshot:
        with self._lock:
            entries, measured = list(self._entries.values()), self._measured
            priced, limit = self._priced, self._limit
        rows = []
        for kind in EntryKind:
            mine = [entry.num_bytes for entry in entries if entry.kind is kind]
            if mine:
                told = measured.pool_bytes if kind is EntryKind.BUFFER_POOL else None
                rows.append(Row(kind, sum(mine), told, len(mine)))
        footprint = measured.footprint_bytes
        ratio = footprint / priced if footprint is not None and priced else None
        return LedgerSnapshot(tuple(rows), priced, limit, measured, ratio)

    def _available(self) -> int | None:
        return None if self._limit is None else self._limit - self._priced

    def _check(self, kind: EntryKind, more: int) -> None:
        available = self._available()
        if available is not None and more > available:
            raise NotEnoughMemory(kind, more, available)

    def _resize(self, entry: Reservation, num_bytes: int) -> None:
        if num_bytes < 0:
            raise ValueError(f"cannot hold {num_bytes} bytes")
        with self._lock:
            if id(entry) not in self._entries:
                raise ValueError(f"{entry.kind} of {entry.owner} was released")
            if num_bytes > entry.num_bytes:
                self._check(entry.kind, num_bytes - entry.num_bytes)
            self._priced += num_bytes - entry.num_bytes
            entry.num_bytes = num_bytes

    def _release(self, entry: Reservation) -> None:
        with self._lock:
            if self._entries.pop(id(entry), None) is not None:
                self._priced -= entry.num_bytes


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if abs(num_bytes) >= 1e9 else f"{num_bytes / 1e6:.0f} MB"
