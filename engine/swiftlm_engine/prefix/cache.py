"""The prefix cache of one model: match before prefill, store at boundaries and at the end.

Belongs to the engine thread. A hit hands out caches that share the stored buffers, so any number of
sequences may continue from one entry, and no stored entry ever changes.
"""

import logging
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from swiftlm_engine.brain.kv_extents import Extent
from swiftlm_engine.brain.prefix_index import Entry, Found, Kind
from swiftlm_engine.kv.shared_cache import KVBuffer
from swiftlm_engine.prefix.block_tree import BlockPath
from swiftlm_engine.prefix.ram import CacheLayout, RamTier
from swiftlm_engine.prefix.snapshot import Cache, assemble, kind_of, leaves_of, length_of
from swiftlm_engine.prefix.ssd import SsdStats, SsdTier
from swiftlm_engine.prefix.ssd_writeback import MAX_COPY_BYTES, WritebackQueue
from swiftlm_engine.ranks import SINGLE_PROCESS, Ranks

log = logging.getLogger(__name__)

# A disk hit must save at least this many tokens over what RAM has: reading is not free.
_MIN_SSD_GAIN = 64


class HitSource(Enum):
    RAM = "ram"
    SSD = "ssd"


class HitReason(Enum):
    WHOLE = "whole entry"  # everything that was stored of this conversation
    TRIMMED = "trimmed entry"  # cut where the prompt departs from what was stored
    CHECKPOINT = "checkpoint"  # the last stored state before the prompt departs


class MissReason(Enum):
    DISABLED = "cache disabled"
    TOO_SHORT = "prompt too short"
    EMPTY = "cache empty"
    NO_COMMON_PREFIX = "no common prefix"
    NO_CHECKPOINT = "no checkpoint before the prompts depart"


@dataclass(frozen=True, slots=True)
class Match:
    """The first `length` tokens are in `caches`, which the caller owns and may extend."""

    length: int
    caches: list[Cache]
    source: HitSource
    reason: HitReason
    common: int  # tokens shared with some stored prefix; more than length only at a CHECKPOINT


@dataclass(frozen=True, slots=True)
class Miss:
    reason: MissReason
    common: int = 0
    length: int = 0


class StoreResult(Enum):
    STORED = "stored"
    COVERED = "covered by a longer entry"
    DISABLED = "cache disabled"
    TOO_LARGE = "larger than the budget"
    MISMATCH = "caches and tokens differ in length"


@dataclass(frozen=True, slots=True)
class PrefixStats:
    num_entries: int
    nbytes: int
    budget_bytes: int
    num_hits: int
    num_misses: int
    num_evicted: int
    prompt_tokens: int
    cached_tokens: int
    misses: dict[str, int]
    refused_stores: dict[str, int]
    waiting_bytes: int  # stored, and still to be copied out for the SSD
    ssd: SsdStats | None


@dataclass(slots=True)
class _RamCounters:
    num_hits: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    misses: dict[MissReason, int] = field(default_factory=dict)
    refused: dict[StoreResult, int] = field(default_factory=dict)


# True: a file was read, there is more; False: it waits for another search. Ends with the result.
Search = Generator[bool, None, Match | Miss]


class PrefixCache:
    """`new_caches` makes the empty caches of one sequence, as the runner does.

    Owns `ssd` and closes it. A budget of zero stores nothing, on the SSD neither.
    """

    def __init__(
        self,
        new_caches: Callable[[], Sequence[Cache]],
        ram_bytes: int,
        ssd: SsdTier | None = None,
        clock: Callable[[], float] = time.monotonic,
        ranks: Ranks = SINGLE_PROCESS,
    ) -> None:
        self._layout = CacheLayout.of(new_caches())
        self._ssd = ssd
        self._offers = WritebackQueue(ssd, clock) if ssd else None
        on_removed = self._offers.release if self._offers else _ignore
        self._ram = RamTier(self._layout, ram_bytes, on_removed, ranks)
        self._counters = _RamCounters()
        self._clock = clock
        self._is_closed = False
        self._is_reading = False  # one search at a time reads from the SSD

    @property
    def nbytes(self) -> int:
        return self._ram.nbytes

    def bytes_in(self, extents: Iterable[Extent[KVBuffer]]) -> int:
        """What counts in `nbytes` of buffers that running sequences hold, too."""
        return sum(self._ram.bytes_in(extent) for extent in set(extents))

    def claims(
        self, token_ids: Sequence[int], salt: bytes = b""
    ) -> list[tuple[Extent[KVBuffer], int]]:
        """Of a prompt that has not been searched for: the bytes that a hit would share, in each
        buffer of the RAM tier. Counts as no use."""
        if self._ram.budget_bytes <= 0:
            return []
        return self._ram.claims(self._ram.find(token_ids, len(token_ids) - 1, salt))

    def match(self, token_ids: Sequence[int], salt: bytes = b"") -> Match | Miss:
        """The longest usable prefix, at most all but the last token, which is still to be run."""
        return ended(self.search(token_ids, salt))

    def search(self, token_ids: Sequence[int], salt: bytes = b"") -> Search:
        """`match` in small portions: pauses while files are read from the SSD. Close a search that
        is given up."""
        result = yield from self._search(token_ids, salt)
        self._counters.prompt_tokens += len(token_ids)
        self._counters.cached_tokens += result.length
        if isinstance(result, Match):
            self._counters.num_hits += 1
        else:
            _count(self._counters.misses, result.reason)
        return result

    def store(
        self,
        token_ids: Sequence[int],
        caches: Sequence[Cache],
        kind: Kind = Kind.TURN,
        salt: bytes = b"",
        system_length: int = 0,
    ) -> StoreResult:
        """Remember `caches`, which hold exactly `token_ids`; the caller goes on using them.

        The first `system_length` tokens are what conversations share: they leave last.
        """
        result = self._store(token_ids, caches, kind, salt, system_length)
        if result not in (StoreResult.STORED, StoreResult.COVERED):
            _count(self._counters.refused, result)
        return result

    def stats(self) -> PrefixStats:
        counters = self._counters
        return PrefixStats(
            num_entries=len(self._ram),
            nbytes=self._ram.nbytes,
            budget_bytes=self._ram.budget_bytes,
            num_hits=counters.num_hits,
            num_misses=sum(counters.misses.values()),
            num_evicted=self._ram.num_evicted,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            misses={reason.value: count for reason, count in counters.misses.items()},
            refused_stores={reason.value: count for reason, count in counters.refused.items()},
            waiting_bytes=self.waiting_bytes,
            ssd=self._ssd.stats() if self._ssd else None,
        )

    def resize(self, ram_bytes: int) -> None:
        """Change the budget at once; evicts what no longer fits. Zero switches the cache off."""
        if not self._is_closed:
            if ram_bytes < self.nbytes:
                self.pump()  # what waits for the SSD may have to go
            self._ram.resize(ram_bytes)

    @property
    def waiting_since(self) -> float | None:
        """Since when, by this cache's clock, something waits to be written; None: nothing does."""
        return self._offers.waiting_since if self._offers else None

    @property
    def waiting_bytes(self) -> int:
        return self._offers.waiting_bytes if self._offers else 0

    @property
    def is_writing(self) -> bool:
        return self._ssd is not None and self._ssd.is_writing

    def pump(self, max_bytes: int = MAX_COPY_BYTES) -> bool:
        """Copy out about `max_bytes` of what waits, and hand them to the writer; True when nothing
        is left."""
        if self._offers is None or self._is_closed:
            return True
        return self._offers.pump(max_bytes)

    def clear(self) -> None:
        """Forget everything, on the SSD too."""
        self._ram.clear()
        if self._offers and self._ssd and not self._is_closed:
            self._offers.clear()
            self._ssd.clear()

    def close(self, deadline_s: float = 5.0) -> bool:
        """Write what is waiting, let go of everything; False when the deadline came first.

        Afterwards the cache is switched off for good. Safe to call twice.
        """
        is_saved = True
        if self._offers and self._ssd and not self._is_closed:
            deadline = self._clock() + deadline_s
            self._offers.last_call()
            while not (is_saved := self._offers.pump()) and self._clock() < deadline:
                self._ssd.drain(max(0.0, deadline - self._clock()))
            is_saved &= self._ssd.close(max(0.0, deadline - self._clock()))
            self._offers.clear()
        self._ram.resize(0)
        self._is_closed = True
        return is_saved

    def check_integrity(self) -> None:
        self._ram.check_integrity()

    def _search(self, token_ids: Sequence[int], salt: bytes) -> Search:
        if self._ram.budget_bytes <= 0:
            return Miss(MissReason.DISABLED)
        if len(token_ids) < 2:
            return Miss(MissReason.TOO_SHORT)
        if self._ssd and (match := (yield from self._search_ssd(self._ssd, token_ids, salt))):
            return match
        found = self._ram.find(token_ids, len(token_ids) - 1, salt)
        if found.length == 0:
            return Miss(self._miss_reason(found), found.common)
        caches = self._ram.give(found)
        return Match(found.length, caches, HitSource.RAM, _hit_reason(found), found.common)

    def _search_ssd(
        self, ssd: SsdTier, token_ids: Sequence[int], salt: bytes
    ) -> Generator[bool, None, Match | None]:
        """A hit from disk where it is worth the read; the RAM tier then has it too."""
        unread: BlockPath | None = None
        while not self._is_closed:
            found = self._ram.find(token_ids, len(token_ids) - 1, salt)
            worth = found.length + (_MIN_SSD_GAIN if found.length else 1)
            route = ssd.find(token_ids, len(token_ids) - 1, salt)
            if route is None or route.length < worth or route == unread:
                return None
            if self._is_reading:  # maybe the very same prefix: look again when RAM has it
                yield False
                continue
            self._is_reading = True
            try:
                leaves = yield from ssd.restore(route)
            finally:
                self._is_reading = False
            if leaves is None:
                unread = route
                continue  # a damaged file is gone from the index: look again
            caches = assemble(self._layout.shape, iter(leaves))
            self._ram.store(token_ids[: route.length], caches, Kind.TURN, salt)
            common = max(route.length, found.common)
            reason = HitReason.CHECKPOINT if common > route.length else HitReason.WHOLE
            return Match(route.length, caches, HitSource.SSD, reason, common)
        return None

    def _miss_reason(self, found: Found) -> MissReason:
        if found.common:
            return MissReason.NO_CHECKPOINT
        return MissReason.NO_COMMON_PREFIX if len(self._ram) else MissReason.EMPTY

    def _store(
        self,
        token_ids: Sequence[int],
        caches: Sequence[Cache],
        kind: Kind,
        salt: bytes,
        system_length: int,
    ) -> StoreResult:
        if self._ram.budget_bytes <= 0:
            return StoreResult.DISABLED
        if not self._fits_layout(token_ids, caches):
            return StoreResult.MISMATCH
        added = self._ram.store(token_ids, caches, kind, salt, system_length)
        if added is None:
            log.info("prefix of %s tokens not stored: larger than the budget", len(token_ids))
            return StoreResult.TOO_LARGE
        if self._offers and (snapshots := self._ram.snapshots(added)):
            self._offers.add(snapshots, kind)
        return StoreResult.STORED if added else StoreResult.COVERED

    def _fits_layout(self, token_ids: Sequence[int], caches: Sequence[Cache]) -> bool:
        """A cache that is ahead of its tokens would poison every later hit: refuse it loudly."""
        leaves = leaves_of(caches)
        kinds = tuple(kind_of(leaf) for leaf in leaves)
        lengths = {length for leaf in leaves if (length := length_of(leaf)) is not None}
        if kinds == self._layout.kinds and lengths <= {len(token_ids)} and token_ids:
            return True
        log.error("prefix not stored: %s tokens, layers hold %s", len(token_ids), sorted(lengths))
        return False


def ended(search: Search) -> Match | Miss:
    """The result of a search, without pauses."""
    try:
        while next(search):
            pass
    except StopIteration as end:
        result: Match | Miss = end.value
        return result
    raise RuntimeError("another search is reading")


def _hit_reason(found: Found) -> HitReason:
    if found.length < found.common:
        return HitReason.CHECKPOINT
    entries = [entry for entry in (found.trunk, found.state) if entry is not None]
    whole = any(entry.length == found.length for entry in entries)
    return HitReason.WHOLE if whole else HitReason.TRIMMED


def _count(counts: dict[Any, int], key: object) -> None:
    counts[key] = counts.get(key, 0) + 1


def _ignore(entry: Entry, was_evicted: bool) -> None:
    """Nobody is waiting for the entries of a cache without SSD."""
