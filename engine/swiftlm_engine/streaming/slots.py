"""Which expert sits in which slot of one layer, and who leaves when a new one comes.

Pure: no tensor, no file. A lookup is first planned, then the caller reads the missing experts, and
then the plan is committed or abandoned; an abandoned plan leaves no expert in a slot that may have
been half written.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class PolicyKind(StrEnum):
    LRU = "lru"
    LFU = "lfu"
    S3_FIFO = "s3fifo"


class Policy(Protocol):
    """The order in which experts leave. Every expert in a slot is known to it, and no other."""

    def add(self, expert: int) -> None: ...
    def touch(self, expert: int) -> None: ...
    def remove(self, expert: int) -> None: ...
    def victim(self, keep: Collection[int]) -> int:
        """One of its experts that is not in `keep`; it stays until `remove`."""
        ...


@dataclass(frozen=True, slots=True)
class Install:
    """An expert that has to be read into a slot; `evicted` sat there."""

    expert: int
    slot: int
    evicted: int | None


@dataclass(frozen=True, slots=True)
class SlotPlan:
    hits: tuple[int, ...]
    installs: tuple[Install, ...]

    @property
    def num_evicted(self) -> int:
        return sum(install.evicted is not None for install in self.installs)


@dataclass(frozen=True, slots=True)
class Move:
    """From a slot to one of the slots that take their place."""

    old: int
    new: int


class SlotMap:
    """A bijection between the experts that are in memory and the slots they use."""

    def __init__(self, num_slots: int, policy: Policy) -> None:
        self.num_slots = num_slots
        self._policy = policy
        self._slots: dict[int, int] = {}
        self._free = list(range(num_slots - 1, -1, -1))

    def __contains__(self, expert: int) -> bool:
        return expert in self._slots

    def __len__(self) -> int:
        return len(self._slots)

    def slot(self, expert: int) -> int:
        return self._slots[expert]

    def touch(self, experts: Collection[int]) -> None:
        for expert in experts:
            self._policy.touch(expert)

    def plan(self, experts: Collection[int]) -> SlotPlan:
        """Slots for distinct experts, at most `num_slots`. Evicts; must be committed or abandoned.

        Hits keep their slots: nothing that this call needs is evicted by it.
        """
        if len(experts) > self.num_slots:
            raise ValueError(f"{len(experts)} experts for {self.num_slots} slots")
        hits = tuple(e for e in experts if e in self._slots)
        self.touch(hits)
        installs = [self._seat(e, experts) for e in experts if e not in self._slots]
        return SlotPlan(hits, tuple(installs))

    def _seat(self, expert: int, keep: Collection[int]) -> Install:
        if self._free:
            return Install(expert, self._free.pop(), None)
        evicted = self._policy.victim(keep)
        self._policy.remove(evicted)
        return Install(expert, self._slots.pop(evicted), evicted)

    def commit(self, plan: SlotPlan) -> None:
        for install in plan.installs:
            self._slots[install.expert] = install.slot
            self._policy.add(install.expert)

    def abandon(self, plan: SlotPlan) -> None:
        """The read failed: the slots are free and what was evicted stays out."""
        self._free += [install.slot for install in plan.installs]

    def resize(self, num_slots: int) -> list[Move]:
        """Fewer or more slots; what leaves is what the policy would evict next."""
        while len(self._slots) > num_slots:
            evicted = self._policy.victim(())
            self._policy.remove(evicted)
            del self._slots[evicted]
        moves = [Move(old, new) for new, old in enumerate(self._slots.values())]
        self._slots = {expert: new for new, expert in enumerate(self._slots)}
        self._free = list(range(num_slots - 1, len(moves) - 1, -1))
        self.num_slots = num_slots
        return moves

    def check_integrity(self) -> None:
        seats = sorted([*self._slots.values(), *self._free])
        if seats != list(range(self.num_slots)):
            raise RuntimeError(f"slots {seats} are not each one of {self.num_slots}")


def make_policy(kind: PolicyKind, num_slots: int) -> Policy:
    match kind:
        case PolicyKind.LRU:
            return LeastRecent()
        case PolicyKind.LFU:
            return LeastFrequent()
        case PolicyKind.S3_FIFO:
            return S3Fifo(num_slots)


class LeastRecent:
    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def add(self, expert: int) -> None:
        self._order[expert] = None

    def touch(self, expert: int) -> None:
        self._order.move_to_end(expert)

    def remove(self, expert: int) -> None:
        del self._order[expert]

    def victim(self, keep: Collection[int]) -> int:
        return next(e for e in self._order if e not in keep)


AGE_EVERY = 1024  # touches after which all counts are halved, so that old fame fades


class LeastFrequent:
    """Counts survive eviction, halved now and then; ties leave in order of arrival."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._inside: dict[int, None] = {}
        self._touches = 0

    def add(self, expert: int) -> None:
        self._inside[expert] = None
        self._count(expert)

    def touch(self, expert: int) -> None:
        self._count(expert)

    def remove(self, expert: int) -> None:
        del self._inside[expert]

    def victim(self, keep: Collection[int]) -> int:
        return min((e for e in self._inside if e not in keep), key=self._counts.__getitem__)

    def _count(self, expert: int) -> None:
        self._counts[expert] = self._counts.get(expert, 0) + 1
        self._touches += 1
        if self._touches % AGE_EVERY == 0:
            self._counts = {e: count // 2 for e, count in self._counts.items()}


class S3Fifo:
    """Newcomers wait in a small queue; only those asked for again reach the main one."""

    def __init__(self, num_slots: int) -> None:
        self._small: OrderedDict[int, None] = OrderedDict()
        self._main: OrderedDict[int, None] = OrderedDict()
        self._ghosts: deque[int] = deque(maxlen=num_slots)
        self._asked: dict[int, int] = {}
        self._small_size = max(1, num_slots // 10)

    def add(self, expert: int) -> None:
        queue = self._main if expert in self._ghosts else self._small
        queue[expert] = None
        self._asked[expert] = 0

    def touch(self, expert: int) -> None:
        self._asked[expert] = min(3, self._asked[expert] + 1)

    def remove(self, expert: int) -> None:
        if expert in self._small:
            del self._small[expert]
            self._ghosts.append(expert)
        else:
            del self._main[expert]
        del self._asked[expert]

    def victim(self, keep: Collection[int]) -> int:
        self._promote()
        first, second = self._small, self._main
        if len(self._small) <= self._small_size:
            first, second = second, first
        for queue in (first, second):
            found = self._oldest(queue, keep)
            if found is not None:
                return found
        raise ValueError("every expert is to be kept")

    def _promote(self) -> None:
        for expert in [e for e in self._small if self._asked[e] > 0]:
            del self._small[expert]
            self._main[expert] = None
            self._asked[expert] = 0

    def _oldest(self, queue: OrderedDict[int, None], keep: Collection[int]) -> int | None:
        """Goes round the queue until one was not asked for since the last round."""
        for _ in range(4 * len(queue)):
            expert = next(iter(queue))
            if expert not in keep and self._asked[expert] == 0:
                return expert
            queue.move_to_end(expert)
            self._asked[expert] = max(0, self._asked[expert] - 1)
        return next((e for e in queue if e not in keep), None)
