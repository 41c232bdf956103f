"""Which files of the SSD tier serve a prompt, and which go first. Names and numbers, no I/O.

Blocks form trees: a block holds the tokens [start, end) and hangs on the parent block in which
`start` lies, so an edited conversation adds only what differs. States hang on the block in which
their position lies. Files that are still being written take part in planning but not in serving.

Invariants (`check_integrity`): parent.start < start <= parent.end; bytes add up; a parent was used
no earlier than what hangs on it, so that eviction by age takes leaves first.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from swiftlm_engine.brain.tokens import TOKEN_BYTES, common_tokens


@dataclass(slots=True, eq=False)
class Block:
    id: str
    parent: "Block | None"
    start: int
    tokens: bytes
    salt: bytes
    lows: tuple[int, ...]  # per window leaf: positions [low, end) are held
    nbytes: int
    last_used: float
    is_ready: bool
    children: "list[Block]" = field(default_factory=list)
    states: "list[State]" = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + len(self.tokens) // TOKEN_BYTES


@dataclass(slots=True, eq=False)
class State:
    id: str
    block: Block
    position: int
    floor: int
    has_windows: bool
    nbytes: int
    last_used: float
    is_ready: bool


@dataclass(frozen=True, slots=True)
class BlockPath:
    """How to restore the first `length` tokens: blocks in order, and a state where one is used."""

    length: int
    blocks: tuple[Block, ...]
    state: State | None


_Way = tuple[int, Block, State | None]  # a route's length, its last block and its state


def block_id(parent: Block | None, start: int, tokens: bytes, salt: bytes) -> str:
    above = parent.id.encode() if parent else b""
    digest = hashlib.blake2b(digest_size=16)
    for part in (above, start.to_bytes(8, "little"), salt, b"/", tokens):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def state_id(block: Block, position: int) -> str:
    text = f"{block.id}@{position}".encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


class BlockTree:
    """`windows`: tokens each window leaf needs; `needs_state`: nothing is served without one."""

    def __init__(self, windows: tuple[int, ...], needs_state: bool) -> None:
        self.nbytes = 0
        self._windows = windows
        self._needs_state = needs_state
        self._roots: dict[bytes, list[Block]] = {}
        self._items: dict[str, Block | State] = {}
        self._cuttable: set[State] = set()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, id: str) -> Block | State | None:
        return self._items.get(id)

    def items(self) -> list[Block | State]:
        return list(self._items.values())

    def add(self, item: Block | State) -> None:
        if item.id in self._items:
            raise ValueError(f"{item.id} is already in the tree")
        self._items[item.id] = item
        self.nbytes += item.nbytes
        if isinstance(item, State):
            item.block.states.append(item)
            if item.floor < item.position:
                self._cuttable.add(item)
        elif item.parent is not None:
            item.parent.children.append(item)
        else:
            self._roots.setdefault(item.salt, []).append(item)
        self.touch(item, item.last_used)

    def remove(self, item: Block | State) -> list[Block | State]:
        """Take out an item and all that hangs on it; returns them, leaves first."""
        gone = list(reversed(list(_hanging(item))))
        self._cuttable.difference_update(gone)
        for each in gone:
            del self._items[each.id]
            self.nbytes -= each.nbytes
        if isinstance(item, State):
            item.block.states.remove(item)
        elif item.parent is not None:
            item.parent.children.remove(item)
        else:
            self._roots[item.salt].remove(item)
        return gone

    def touch(self, item: Block | State, now: float) -> list[Block | State]:
        """Mark an item and all it hangs on as used; returns those that were older."""
        older: list[Block | State] = []
        current: Block | State | None = item
        while current is not None:
            if current.last_used < now:
                current.last_used = now
                older.append(current)
            current = current.block if isinstance(current, State) else current.parent
        return older

    def by_age(self) -> list[Block | State]:
        """Oldest first; of equal age, what hangs on others first."""
        return sorted(self._items.values(), key=lambda i: (i.last_used, -_depth(i)))

    def attach_point(self, tokens: bytes, salt: bytes) -> tuple[Block | None, int]:
        """The block that agrees longest with the tokens, and to which length; for new blocks."""
        return max(self._visit(tokens, salt), key=lambda visit: visit[1], default=(None, 0))

    def find(self, tokens: bytes, max_length: int, salt: bytes) -> BlockPath | None:
        """The longest prefix, at most `max_length`, that files already written can restore."""
        visits = self._visit(tokens[: max_length * TOKEN_BYTES], salt)
        ways = [way for visit in visits for way in self._ways(*visit)]
        ways += self._shortened(dict(visits))
        for length, block, state in sorted(ways, key=lambda way: way[0], reverse=True):
            route = _route(block, length, state)  # not sooner: a chain grows with every turn
            if self._serves(route):
                return route
        return None

    def covers_windows(self, blocks: tuple[Block, ...], length: int) -> bool:
        """Whether the blocks hold, for every window leaf, all of its window before `length`."""
        return all(
            _covered_from(blocks, length, leaf) <= max(0, length - window)
            for leaf, window in enumerate(self._windows)
        )

    def last_state(self, block: Block, position: int) -> int:
        """Position of the last state at or before `position` on the way to `block`; 0 if none."""
        on_the_way = (s.position for b in chain_of(block) for s in b.states)
        return max((p for p in on_the_way if p <= position), default=0)

    def check_integrity(self) -> None:
        for item in self._items.values():
            above = item.block if isinstance(item, State) else item.parent
            at = item.position if isinstance(item, State) else item.start
            if above is None:
                _expect(at == 0, "a root starts at 0")
                continue
            _expect(above.id in self._items, "parent is gone")
            _expect(above.start < at <= above.end, "hangs outside its parent")
            _expect(above.last_used >= item.last_used, "parent is older")
        _expect(self.nbytes == sum(i.nbytes for i in self._items.values()), "bytes do not add up")

    def _visit(self, tokens: bytes, salt: bytes) -> list[tuple[Block, int]]:
        """Every block that agrees with the tokens at least in its first, and how far."""
        visits: list[tuple[Block, int]] = []
        stack = list(self._roots.get(salt, ()))
        while stack:
            block = stack.pop()
            rest = tokens[block.start * TOKEN_BYTES : block.end * TOKEN_BYTES]
            if common := common_tokens(block.tokens, rest):
                agreed = block.start + common
                visits.append((block, agreed))
                stack.extend(child for child in block.children if child.start <= agreed)
        return visits

    def _ways(self, block: Block, agreed: int) -> Iterator[_Way]:
        if not self._needs_state:
            yield agreed, block, None
        for state in block.states:
            length = min(agreed, state.position)
            if state.is_ready and length == state.position:
                yield length, block, state

    def _shortened(self, visits: dict[Block, int]) -> Iterator[_Way]:
        """Ways by states further on in a conversation that can be cut to where it agrees."""
        for state in self._cuttable:
            length, block = state.position, state.block
            while block not in visits and block.parent is not None:
                length, block = block.start, block.parent
            length = min(length, visits.get(block, 0))
            if state.is_ready and length >= max(1, state.floor):
                yield length, block, state

    def _serves(self, route: BlockPath) -> bool:
        if not all(block.is_ready for block in route.blocks):
            return False
        if route.state is not None and route.state.has_windows:
            return True
        return self.covers_windows(route.blocks, route.length)


def chain_of(block: Block) -> list[Block]:
    """The block with all it hangs on, first tokens first."""
    chain: list[Block] = []
    current: Block | None = block
    while current is not None:
        chain.append(current)
        current = current.parent
    return chain[::-1]


def ends_of(blocks: tuple[Block, ...], length: int) -> list[int]:
    """How far each block of a chain is used: up to where the next one starts."""
    return [min(nxt.start, length) for nxt in blocks[1:]] + [min(blocks[-1].end, length)]


def _route(block: Block, length: int, state: State | None) -> BlockPath:
    blocks = tuple(b for b in chain_of(block) if b.start < length)
    return BlockPath(length, blocks, state)


def _covered_from(blocks: tuple[Block, ...], length: int, leaf: int) -> int:
    """The first position from which a window leaf is held without a gap up to `length`."""
    first = length
    for block, end in zip(reversed(blocks), reversed(ends_of(blocks, length)), strict=True):
        low = block.lows[leaf]
        if end != first or low >= end:
            break
        first = max(low, block.start)
        if first > block.start:
            break
    return first


def _hanging(item: Block | State) -> Iterator[Block | State]:
    """The item and all that hangs on it, parents first."""
    stack: list[Block | State] = [item]
    while stack:
        top = stack.pop()
        yield top
        if isinstance(top, Block):
            stack.extend(top.states)
            stack.extend(top.children)


def _depth(item: Block | State) -> int:
    return item.position + 1 if isinstance(item, State) else item.start


def _expect(holds: bool, broken: str) -> None:
    if not holds:
        raise AssertionError(f"block tree: {broken}")
