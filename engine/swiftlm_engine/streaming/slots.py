"""Which expert sits in which slot of one layer, and who leaves when a new one comes.

Pure: no tensor, no file. A lookup is first planned, then the caller reads the missing experts, and
then the plan is committed or abandoned; an abandoned plan leaves no expert in a slot that may have
been half written.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Set
from dataclasses import dataclass
from enum import StrEnum
from heapq import nsmallest
from itertools import islice
from typing import Protocol


class PolicyKind(StrEnum):
    LRU = "lru"
    LFU = "lfu"
    S3_FIFO = "s3fifo"


class Policy(Protocol):
    """The order in which experts leave. Every expert in a slot is known to it, and no other."""

    def add(self, expert: int) -> None: ...
    def touch(self, expert: int) -> None: ...
    def victims(self, count: int, keep: Set[int]) -> list[int]:
        """So many of its experts that are not in `keep`, first to leave first; removes them."""
        ...

    def resize(self, num_slots: int) -> None: ...

    def ranked(self) -> list[int]:
        """Its experts, first to leave first."""
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

    def most_wanted(self) -> list[int]:
        """The experts in slots, the last to leave first."""
        return self._policy.ranked()[::-1]

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
        missing = [e for e in experts if e not in self._slots]
        installs = [Install(e, self._free.pop(), None) for e in missing[: len(self._free)]]
        # All at once: asked one by one, a policy would look at every slot for each of them.
        rest = missing[len(installs) :]
        evicted = self._policy.victims(len(rest), frozenset(experts)) if rest else []
        installs += [
            Install(expert, self._slots.pop(old), old)
            for expert, old in zip(rest, evicted, strict=True)
        ]
        return SlotPlan(hits, tuple(installs))

    def commit(self, plan: SlotPlan) -> None:
        for install in plan.installs:
            self._slots[install.expert] = install.slot
            self._policy.add(install.expert)

    def abandon(self, plan: SlotPlan) -> None:
        """The read failed: the slots are free and what was evicted stays out."""
        self._free += [install.slot for install in plan.installs]

    def resize(self, num_slots: int) -> list[Move]:
        """Fewer or more slots; what leaves is what the policy would evict next."""
        too_many = len(self._slots) - num_slots
        if too_many > 0:
            for evicted in self._policy.victims(too_many, frozenset()):
                del self._slots[evicted]
        self._policy.resize(num_slots)
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

    def victims(self, count: int, keep: Set[int]) -> list[int]:
        found = list(islice((e for e in self._order if e not in keep), count))
        for expert in found:
            del self._order[expert]
        return found

    def resize(self, num_slots: int) -> None: ...

    def ranked(self) -> list[int]:
        return list(self._order)


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

    def victims(self, count: int, keep: Set[int]) -> list[int]:
        outside = (e for e in self._inside if e not in keep)
        found = nsmallest(count, outside, key=self._counts.__getitem__)
        for expert in found:
            del self._inside[expert]
        return found

    def resize(self, num_slots: int) -> None: ...

    def ranked(self) -> list[int]:
        return sorted(self._inside, key=self._counts.__getitem__)

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

    def resize(self, num_slots: int) -> None:
        self._ghosts = deque(self._ghosts, maxlen=num_slots)
        self._small_size = max(1, num_slots // 10)

    def ranked(self) -> list[int]:
        main = sorted(self._main, key=self._asked.__getitem__)
        return [*self._small, *main]

    def add(self, expert: int) -> None:
        queue = self._main if expert in self._ghosts else self._small
        queue[expert] = None
        self._asked[expert] = 0

    def touch(self, expert: int) -> None:
        self._asked[expert] = min(3, self._asked[expert] + 1)

    def victims(self, count: int, keep: Set[int]) -> list[int]:
        self._promote()
        return [self._evict(keep) for _ in range(count)]

    def _evict(self, keep: Set[int]) -> int:
        first, second = self._small, self._main
        if len(self._small) <= self._small_size:
            first, second = second, first
        for queue in (first, second):
            expert = self._oldest(queue, keep)
            if expert is None:
                continue
            del queue[expert]
            del self._asked[expert]
            if queue is self._small:
                self._ghosts.append(expert)
            return expert
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
