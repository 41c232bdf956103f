"""Which stored prefix serves a prompt, and which entry leaves first. Tokens and bytes only, no MLX.

A radix tree over token ids, one root per salt. An entry is one of two parts of a cached prefix:

- TRUNK: caches that any shorter prefix can be cut from (plain KV). Floor 0.
- STATE: caches that serve only some prefixes (recurrent state, a sliding window): those of a
  length in [floor, length].

A prompt is served at length P when every part that the model needs has an entry which shares the
prompt's first P tokens and serves P. Trunk and state may come from different entries.

Invariants, checked by `check_integrity`: bytes add up; no entry is covered by a longer one of the
same part.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from swiftlm_engine.brain.radix import Node, check_nodes, grow, prune, walk
from swiftlm_engine.brain.tokens import TOKEN_BYTES, pack, unpack

# One entry of so many is evicted before the order is looked at again: one large prompt may take the
# place of hundreds of small ones, and sorting all for each would stop decode for seconds.
VICTIMS_OF = 16


class CachedPart(Enum):
    TRUNK = "trunk"
    STATE = "state"


class Kind(Enum):
    """Why a prefix was stored; a SYSTEM prefix outlives the conversations that begin with it."""

    TURN = "turn"
    PROMPT = "prompt"
    SYSTEM = "system"


@dataclass(slots=True, eq=False)
class Entry:
    """One stored part. Owned by the index; everybody else reads."""

    part: CachedPart
    tokens: bytes
    salt: bytes
    floor: int
    nbytes: int
    kind: Kind
    # Length of the longest SYSTEM prefix inside: what survives when the entry is evicted.
    system_length: int
    last_used: int = 0
    num_hits: int = 0
    num_locks: int = 0
    node: "Node[CachedPart, Entry] | None" = field(default=None, repr=False)

    @property
    def length(self) -> int:
        return len(self.tokens) // TOKEN_BYTES

    @property
    def token_ids(self) -> list[int]:
        return unpack(self.tokens)


@dataclass(frozen=True, slots=True)
class Found:
    """The longest servable prefix; `common` is how far any stored prefix agrees with the prompt."""

    length: int
    common: int
    trunk: Entry | None = None
    state: Entry | None = None


_Node = Node[CachedPart, Entry]


class PrefixIndex:
    """Longest servable prefix and LRU order; `needs` are the parts a prefix consists of."""

    def __init__(self, needs: frozenset[CachedPart]) -> None:
        if not needs:
            raise ValueError("a prefix consists of at least one part")
        self.needs = needs
        self.nbytes = 0
        self._roots: dict[bytes, _Node] = {}
        self._entries: set[Entry] = set()
        self._tick = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries))

    # ---- reading ----

    def find(self, token_ids: Sequence[int], max_length: int, salt: bytes = b"") -> Found:
        """The longest prefix of at most `max_length` tokens that all needed parts can serve."""
        root = self._roots.get(salt)
        if root is None:
            return Found(0, 0)
        tokens = pack(token_ids[:max_length])
        path = walk(root, tokens)
        common = path[-1][1]
        length, trunk, state = common, None, None
        if CachedPart.TRUNK in self.needs:
            length, trunk = _deepest(path, CachedPart.TRUNK, length)
        if CachedPart.STATE in self.needs:
            length, state = _deepest(path, CachedPart.STATE, length)
        if length == 0:
            return Found(0, common)
        return Found(length, common, trunk, state)

    def touch(self, *entries: Entry | None) -> None:
        """Count a hit: the entries become the most recently used."""
        self._tick += 1
        for entry in entries:
            if entry is not None:
                entry.last_used = self._tick
                entry.num_hits += 1

    def covered_elsewhere(self, entry: Entry, length: int) -> bool:
        """Whether another trunk shares the first `length` tokens of this one."""
        others = (e for e, common in _neighbours(entry, CachedPart.TRUNK) if common >= length)
        return any(e is not entry for e in others)

    # ---- changing ----

    def insert(
        self,
        part: CachedPart,
        token_ids: Sequence[int],
        nbytes: int,
        *,
        kind: Kind = Kind.TURN,
        floor: int = 0,
        salt: bytes = b"",
        system_length: int = 0,
    ) -> tuple[Entry, list[Entry]]:
        """Add an entry; returns the entry that now serves this prefix and those it made useless.

        When a longer entry serves everything the new one could, that one is returned, touched, and
        nothing is added: the caller compares lengths. Superseded entries are already removed.
        """
        tokens = pack(token_ids)
        if not tokens:
            raise ValueError("an empty prefix cannot be stored")
        if not 0 <= floor <= len(token_ids):
            raise ValueError(f"floor {floor} outside 0..{len(token_ids)}")
        node = grow(self._roots.setdefault(salt, Node()), tokens)
        entry = Entry(part, tokens, salt, floor, nbytes, kind, 0)
        entry.system_length = min(system_length, entry.length)
        if kind is Kind.SYSTEM:
            entry.system_length = entry.length
        longer = _covering(node, entry)
        if longer is not None:
            longer.system_length = max(longer.system_length, entry.system_length)
            self.touch(longer)
            self._prune(node, entry.salt)
            return longer, []
        superseded = _covered(node, entry)
        for old in superseded:
            entry.system_length = max(entry.system_length, old.system_length)
            self.remove(old)
        self._attach(grow(self._roots.setdefault(salt, Node()), tokens), entry)
        return entry, superseded

    def remove(self, entry: Entry) -> None:
        """Take an entry out; its bytes no longer count."""
        node = _node_of(entry)
        del node.values[entry.part]
        entry.node = None
        self._entries.discard(entry)
        self.nbytes -= entry.nbytes
        self._prune(node, entry.salt)

    def clear(self) -> None:
        for entry in self._entries:
            entry.node = None
        self._entries.clear()
        self._roots.clear()
        self.nbytes = 0

    def lock(self, entry: Entry) -> None:
        """Keep an entry from eviction until the matching `unlock`."""
        entry.num_locks += 1

    def unlock(self, entry: Entry) -> None:
        if entry.num_locks == 0:
            raise ValueError("entry is not locked")
        entry.num_locks -= 1

    # ---- who leaves ----

    def victims(self, max_protected_bytes: int) -> list[Entry]:
        """The first entries to evict: least recently used, protected ones last; none: all are
        locked. They are few of many, as their going may end the protection of others.

        Protected are SYSTEM entries and states that several conversations branch off, up to
        `max_protected_bytes` of the most recently used ones.
        """
        free = sorted(
            (e for e in self._entries if e.num_locks == 0),
            key=lambda e: (-e.last_used, e.length),
        )
        protected_bytes = 0
        loose: list[Entry] = []
        protected: list[Entry] = []
        for entry in free:  # most recently used first, so the oldest lose their protection
            if _is_protected(entry) and protected_bytes + entry.nbytes <= max_protected_bytes:
                protected_bytes += entry.nbytes
                protected.append(entry)
            else:
                loose.append(entry)
        return (loose or protected)[::-1][: 1 + len(free) // VICTIMS_OF]

    def surplus_states(self, entry: Entry, max_states: int) -> list[Entry]:
        """Unprotected states on the path to `entry` beyond the `max_states` longest."""
        above = _node_of(entry).upwards()
        states = [
            node.values[CachedPart.STATE] for node in above if CachedPart.STATE in node.values
        ]
        loose = [e for e in states if not _is_protected(e)]
        return loose[max_states:]  # upwards: the longest come first

    def partners(self, entry: Entry) -> list[Entry]:
        """Entries of the other part that serve some prefix together with this one."""
        return list(_partners(entry)) if len(self.needs) > 1 else []

    def stranded(self, among: Iterable[Entry] | None = None) -> list[Entry]:
        """Entries that can serve nothing because no entry of the other needed part fits them."""
        if len(self.needs) < 2:
            return []
        asked = self._entries if among is None else self._entries.intersection(among)
        return [e for e in asked if not _has_partner(e)]

    # ---- proof ----

    def check_integrity(self) -> None:
        """Raise AssertionError when an invariant of the header does not hold. Slow."""
        seen: set[Entry] = set()
        for salt, root in self._roots.items():
            check_nodes(root)
            for node in root.subtree():
                for part, entry in node.values.items():
                    _expect(entry.part is part and entry.node is node, "entry in the wrong place")
                    _expect(entry.tokens == node.path_tokens(), "entry's tokens differ from path")
                    _expect(entry.salt == salt, "entry under the wrong salt")
                    _expect(_covering(node, entry) is None, "entry is superseded")
                    seen.add(entry)
        _expect(seen == self._entries, "entries and tree disagree")
        _expect(self.nbytes == sum(e.nbytes for e in seen), "bytes do not add up")

    # ---- tree ----

    def _attach(self, node: _Node, entry: Entry) -> None:
        node.values[entry.part] = entry
        entry.node = node
        self._entries.add(entry)
        self.nbytes += entry.nbytes
        self._tick += 1
        entry.last_used = self._tick

    def _prune(self, node: _Node, salt: bytes) -> None:
        prune(node)
        if self._roots[salt].is_bare:
            del self._roots[salt]


def _deepest(
    path: list[tuple[_Node, int]], part: CachedPart, max_length: int
) -> tuple[int, Entry | None]:
    """The longest length up to max_length at which an entry of `part` serves; latest used wins."""
    best_length, best, below = 0, None, None
    for node, agreed in reversed(path):
        agreed = min(agreed, max_length)
        if agreed <= best_length:
            break
        for entry in _entries_under(node, part, below):
            length = min(agreed, entry.length)
            newer = best is None or entry.last_used > best.last_used
            if entry.floor <= length and (
                length > best_length or (length == best_length and newer)
            ):
                best_length, best = length, entry
        below = node
    return best_length, best


def _entries_under(node: _Node, part: CachedPart, skip: _Node | None = None) -> Iterator[Entry]:
    return (n.values[part] for n in node.subtree(skip) if part in n.values)


def _neighbours(entry: Entry, part: CachedPart) -> Iterator[tuple[Entry, int]]:
    """Entries of `part` with the number of tokens they share with `entry`, nearest first."""
    below = None
    for node in _node_of(entry).upwards():
        for other in _entries_under(node, part, below):
            yield other, node.depth
        below = node


def _covering(node: _Node, entry: Entry) -> Entry | None:
    """An entry at or below `node` that serves every length `entry` could serve."""
    for other in _entries_under(node, entry.part):
        if other is not entry and other.floor <= entry.floor:
            return other
    return None


def _covered(node: _Node, entry: Entry) -> list[Entry]:
    """Entries at or above `node` that `entry` makes superfluous."""
    above = (n.values[entry.part] for n in node.upwards() if entry.part in n.values)
    return [e for e in above if entry.floor <= e.floor]


def _has_partner(entry: Entry) -> bool:
    return next(_partners(entry), None) is not None


def _partners(entry: Entry) -> Iterator[Entry]:
    other = CachedPart.STATE if entry.part is CachedPart.TRUNK else CachedPart.TRUNK
    return (
        partner
        for partner, common in _neighbours(entry, other)
        if common >= max(1, entry.floor, partner.floor)
    )


def _is_protected(entry: Entry) -> bool:
    if entry.kind is Kind.SYSTEM:
        return True
    if entry.part is CachedPart.TRUNK:
        return False  # shrinks to its SYSTEM prefix instead of leaving
    return entry.system_length > 0 or len(_node_of(entry).children) > 1


def _node_of(entry: Entry) -> _Node:
    if entry.node is None:
        raise KeyError("entry is not in the index")
    return entry.node


def _expect(holds: bool, broken: str) -> None:
    if not holds:
        raise AssertionError(f"prefix index: {broken}")
