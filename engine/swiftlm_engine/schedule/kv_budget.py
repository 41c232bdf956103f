"""Admission by memory: who may hold KV."""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol


class Grant(Enum):
    """The answer to who holds KV beside the sequences."""

    HELD = auto()
    LATER = auto()
    NEVER = auto()  # although nobody holds any


class KVBudget(Protocol):
    """Admission by memory. `grant` reserves and says whether it could; `release` gives back."""

    def grant(self, kv_bytes: int) -> bool: ...

    def release(self, kv_bytes: int) -> None: ...


class UnlimitedKV:
    """Grants everything: no budget was set."""

    def grant(self, kv_bytes: int) -> bool:
        return True

    def release(self, kv_bytes: int) -> None:
        return None


class LimitedKV:
    """Grants until the sum of reservations reaches the budget."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.reserved_bytes = 0

    def grant(self, kv_bytes: int) -> bool:
        if self.reserved_bytes + kv_bytes > self.budget_bytes:
            return False
        self.reserved_bytes += kv_bytes
        return True

    def release(self, kv_bytes: int) -> None:
        self.reserved_bytes -= kv_bytes
