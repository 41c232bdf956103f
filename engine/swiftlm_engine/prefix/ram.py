"""RAM tier: which snapshots are kept, within a budget of bytes.

A stored prefix is a trunk (leaves that can be cut anywhere) and a state (all other leaves, which
serve what they can); each is an entry of its own, so that many checkpoints of one conversation
share one trunk. Trunks that begin alike may hold the same buffers, which then count once. Never
holds more bytes than its budget once a call has returned.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import mlx.core as mx

from swiftlm_engine.brain.kv_extents import Extent, SharedBytes
from swiftlm_engine.brain.prefix_index import CachedPart, Entry, Found, Kind, PrefixIndex
from swiftlm_engine.kv.shared_cache import KVBuffer, SharedKVCache, fit
from swiftlm_engine.prefix.snapshot import (
    Cache,
    LeafKind,
    arrays_of,
    assemble,
    compact,
    floor_of,
    give,
    kind_of,
    leaf_nbytes,
    leaves_of,
    take,
)
from swiftlm_engine.ranks import SINGLE_PROCESS, Ranks

# Checkpoints one conversation may hold besides those it shares with others.
MAX_STATES = 6


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """How this model's caches divide into parts; the same for every sequence."""

    shape: tuple[Cache, ...]  # one set of caches, kept for its nesting and classes only
    kinds: tuple[LeafKind, ...]

    @classmethod
    def of(cls, caches: Sequence[Cache]) -> "CacheLayout":
        return cls(tuple(caches), tuple(kind_of(leaf) for leaf in leaves_of(caches)))

    def part_of(self, index: int) -> CachedPart:
        return CachedPart.TRUNK if self.kinds[index] is LeafKind.TRUNK else CachedPart.STATE

    def snapshots(self, caches: Sequence[Cache]) -> "dict[CachedPart, Leaves]":
        parts: dict[CachedPart, Leaves] = {}
        for position, leaf in enumerate(leaves_of(caches)):
            parts.setdefault(self.part_of(position), {})[position] = take(leaf)
        return parts

    @property
    def needs(self) -> frozenset[CachedPart]:
        return frozenset(self.part_of(index) for index in range(len(self.kinds)))


Leaves = dict[int, Cache]  # by position among all leaves


@dataclass(frozen=True, slots=True)
class _Kept:
    """The number is what other ranks know it by."""

    number: int
    leaves: Leaves
    claims: tuple[tuple[Extent[KVBuffer], int], ...]  # bytes in buffers that others may hold


def _claims(leaves: Leaves) -> tuple[tuple[Extent[KVBuffer], int], ...]:
    shared = (leaf for leaf in leaves.values() if isinstance(leaf, SharedKVCache))
    return tuple(claim for leaf in shared for claim in leaf.held_bytes())


def assembled(layout: CacheLayout, parts: Sequence[tuple[Leaves, int]], length: int) -> list[Cache]:
    """Fresh caches of the first `length` tokens, from snapshots that are each longer by so many."""
    leaves = {}
    for snapshot, shorter_by in parts:
        for position, leaf in snapshot.items():
            leaves[position] = give(leaf, length, shorter_by)
    return assemble(layout.shape, (leaves[position] for position in range(len(layout.kinds))))


def cut(leaves: Leaves, length: int, shorter_by: int) -> Leaves:
    """Snapshots of the first `length` tokens that own just their bytes. Lazy."""
    return {p: compact(give(leaf, length, shorter_by)) for p, leaf in leaves.items()}


class RamTier:
    """Snapshots by prefix. `on_removed` hears of every entry that leaves, and if to make room;
    other ranks of a group do to theirs what is done here."""

    def __init__(
        self,
        layout: CacheLayout,
        budget_bytes: int,
        on_removed: Callable[[Entry, bool], None] = lambda entry, was_evicted: None,
        ranks: Ranks = SINGLE_PROCESS,
    ) -> None:
        self.layout = layout
        self.budget_bytes = budget_bytes
        self.num_evicted = 0
        self._index = PrefixIndex(layout.needs)
        self._kept: dict[Entry, _Kept] = {}
        self._shared = SharedBytes()
        self._numbers = count(1)
        self._on_removed = on_removed
        self._ranks = ranks

    def __len__(self) -> int:
        return len(self._index)

    @property
    def nbytes(self) -> int:
        return self._index.nbytes - self._shared.surplus

    def bytes_in(self, extent: Extent[KVBuffer]) -> int:
        """Bytes of an extent that count here."""
        return self._shared.of(extent)

    def find(self, token_ids: Sequence[int], max_length: int, salt: bytes) -> Found:
        return self._index.find(token_ids, max_length, salt)

    def claims(self, found: Found) -> list[tuple[Extent[KVBuffer], int]]:
        """Bytes in each buffer that caches given for `found` would share."""
        if found.trunk is None:
            return []
        shared = [
            leaf.fork(found.length)
            for leaf in self._kept[found.trunk].leaves.values()
            if isinstance(leaf, SharedKVCache) and found.length >= leaf.sharing.min_tokens
        ]
        return [claim for leaf in shared for claim in leaf.held_bytes()]

    def give(self, found: Found) -> list[Cache]:
        """Fresh caches for what `find` found; counts as a use."""
        self._index.touch(found.trunk, found.state)
        entries = [entry for entry in (found.trunk, found.state) if entry is not None]
        kept = [(self._kept[entry], entry.length - found.length) for entry in entries]
        self._ranks.give([(one.number, shorter_by) for one, shorter_by in kept], found.length)
        parts = [(one.leaves, shorter_by) for one, shorter_by in kept]
        return assembled(self.layout, parts, found.length)

    def store(
        self,
        token_ids: Sequence[int],
        caches: Sequence[Cache],
        kind: Kind,
        salt: bytes,
        system_length: int = 0,
    ) -> list[Entry] | None:
        """Keep a snapshot; returns the entries added (none: it was covered), None if too large."""
        parts = self.layout.snapshots(caches)
        nbytes = {part: sum(map(leaf_nbytes, leaves.values())) for part, leaves in parts.items()}
        if sum(nbytes.values()) > self.budget_bytes:
            return None
        added = []
        for part, leaves in parts.items():
            floor = max(floor_of(leaf, len(token_ids)) for leaf in leaves.values())
            trunk_only = system_length if part is CachedPart.TRUNK else 0
            entry, superseded = self._index.insert(
                part, token_ids, nbytes[part], kind=kind, floor=floor, salt=salt,
                system_length=trunk_only,
            )  # fmt: skip
            self._forget(superseded, was_evicted=False)
            if entry not in self._kept:
                kept = self._keep(entry, leaves)
                self._ranks.keep(kept.number, part)
                # Started here: a snapshot must not keep a graph, and so its inputs, alive.
                mx.async_eval([arrays_of(leaf) for leaf in leaves.values()])
                added.append(entry)
        self._settle(added)
        return added

    def snapshots(self, entries: list[Entry]) -> list[tuple[Entry, Leaves]]:
        """The snapshots behind those entries that are still here; read only."""
        return [(entry, self._kept[entry].leaves) for entry in entries if entry in self._kept]

    def resize(self, budget_bytes: int) -> None:
        self.budget_bytes = max(0, budget_bytes)
        if self.budget_bytes:
            self._evict()
        else:
            self.clear()

    def clear(self) -> None:
        entries = list(self._index)
        self._index.clear()
        self._forget(entries, was_evicted=False)

    def check_integrity(self) -> None:
        self._index.check_integrity()
        if set(self._kept) != set(self._index):
            raise AssertionError("snapshots and index disagree")

    def _settle(self, added: list[Entry]) -> None:
        """Bring the number of checkpoints and of bytes back within their limits."""
        for entry in added:
            self._index.lock(entry)
        try:
            for entry in added:
                if entry.part is CachedPart.STATE:
                    surplus = self._index.surplus_states(entry, MAX_STATES)
                    self._drop(surplus, was_evicted=False)
            self._drop(self._index.stranded(), was_evicted=True)
            self._evict()
        finally:
            for entry in added:
                self._index.unlock(entry)

    def _evict(self) -> None:
        while self.nbytes > self.budget_bytes:
            victims = self._index.victims(max_protected_bytes=self.budget_bytes // 2)
            if not victims:
                raise RuntimeError("prefix cache: every entry is locked and the budget is exceeded")
            for victim in victims:
                if self.nbytes > self.budget_bytes and victim in self._kept:
                    self._evict_one(victim)

    def _evict_one(self, victim: Entry) -> None:
        self.num_evicted += 1
        partners = self._index.partners(victim)
        if not self._shrink(victim):
            self._drop([victim], was_evicted=True)
        self._drop(self._index.stranded(partners), was_evicted=True)

    def _shrink(self, trunk: Entry) -> bool:
        """Keep just the system prompt of a trunk that has to leave, unless another trunk has it."""
        length = trunk.system_length
        if trunk.part is not CachedPart.TRUNK or not 0 < length < trunk.length:
            return False
        if self._index.covered_elsewhere(trunk, length):
            return False
        shorter_by = trunk.length - length
        number, leaves = self._kept[trunk].number, self._kept[trunk].leaves
        leaves = cut(leaves, length, shorter_by)
        nbytes = sum(map(leaf_nbytes, leaves.values()))
        if nbytes >= trunk.nbytes:
            return False
        mx.eval([arrays_of(leaf) for leaf in leaves.values()])
        new_number = next(self._numbers)
        self._ranks.shorten(new_number, number, length, shorter_by)
        self._drop([trunk], was_evicted=True)
        token_ids = trunk.token_ids[:length]
        entry, _ = self._index.insert(
            CachedPart.TRUNK, token_ids, nbytes, kind=Kind.SYSTEM, salt=trunk.salt
        )
        entry.last_used = trunk.last_used
        self._keep(entry, leaves, new_number)
        return True

    def _keep(self, entry: Entry, leaves: Leaves, number: int | None = None) -> _Kept:
        kept = _Kept(next(self._numbers) if number is None else number, leaves, _claims(leaves))
        for extent, nbytes in kept.claims:
            self._shared.add(extent, nbytes)
        self._kept[entry] = kept
        return kept

    def _drop(self, entries: list[Entry], was_evicted: bool) -> None:
        for entry in entries:
            self._index.remove(entry)
        self._forget(entries, was_evicted)

    def _forget(self, entries: list[Entry], was_evicted: bool) -> None:
        for entry in entries:
            kept = self._kept.pop(entry)
            claims = kept.claims
            for extent, nbytes in claims:
                self._shared.remove(extent, nbytes)
            self._ranks.forget(kept.number)
            del kept
            self._on_removed(entry, was_evicted)
            fit(extent for extent, _ in claims)
