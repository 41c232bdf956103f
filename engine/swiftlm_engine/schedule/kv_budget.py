"""Admission by memory: who may hold KV."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol


class Grant(Enum):
    """The answer to who holds KV beside the sequences."""

    HELD = auto()
    LATER = auto()
    NEVER = auto()  # although nobody holds any


class KVBudget(Protocol):
    """Admission by memory. `grant` reserves and says whether it could; `release` gives back.

    Each sequence reserves all that it will hold; what several of them hold together counts once.
    """

    @property
    def is_exceeded(self) -> bool:
        """Reservations have outgrown the budget: what was expected to be shared is not."""

    def grant(self, kv_bytes: int, shared_bytes: int = 0) -> bool:
        """`shared_bytes`: what of them is held already, by the sequences that run."""

    def release(self, kv_bytes: int) -> None: ...


class UnlimitedKV:
    """Grants everything: no budget was set."""

    is_exceeded = False

    def grant(self, kv_bytes: int, shared_bytes: int = 0) -> bool:
        return True

    def release(self, kv_bytes: int) -> None:
        return None


class LimitedKV:
    """Grants until the sum of reservations reaches the budget."""

    def __init__(self, budget_bytes: int, counted_twice: Callable[[], int] = lambda: 0) -> None:
        """`counted_twice`: by how much the sum of what running sequences hold exceeds what they
        hold together. It takes a while and is asked only where the plain sum does not fit."""
        self.budget_bytes = budget_bytes
        self.reserved_bytes = 0
        self._counted_twice = counted_twice

    @property
    def is_exceeded(self) -> bool:
        excess = self.reserved_bytes - self.budget_bytes
        return excess > 0 and excess > self._counted_twice()

    def grant(self, kv_bytes: int, shared_bytes: int = 0) -> bool:
        excess = self.reserved_bytes + kv_bytes - self.budget_bytes
        if excess > 0 and excess > self._counted_twice() + shared_bytes:
            return False
        self.reserved_bytes += kv_bytes
        return True

    def release(self, kv_bytes: int) -> None:
        self.reserved_bytes -= kv_bytes
