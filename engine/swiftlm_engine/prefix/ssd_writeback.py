"""What of a stored prefix goes to the SSD, and when. Engine thread only.

An offer is what the RAM tier has just stored. It waits, holding the RAM tier's own snapshots, until
`pump` copies its blocks out (`pace.py` says when); waiting costs no memory beyond the RAM budget.
What the RAM tier evicts meanwhile is copied out then, and what the writer's queue does not take of
it is dropped (counted).

States are the expensive part: a state is written only when the tokens since the last one on disk
amount to as many bytes, which keeps all writes within twice the KV of the tokens appended. A state
that has not paid for itself yet is written when it would otherwise be lost: on eviction, at close.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from swiftlm_engine.brain.prefix_index import Entry, Kind
from swiftlm_engine.brain.tokens import TOKEN_BYTES
from swiftlm_engine.prefix.block_file import ArrayRecord, BlockHeader, FileKind, file_bytes
from swiftlm_engine.prefix.block_tree import Block, State, block_id, chain_of, state_id
from swiftlm_engine.prefix.disk_leaves import (
    NotStorable,
    SharedTokens,
    TokenArrays,
    take_apart,
    to_bytes,
    token_arrays,
)
from swiftlm_engine.prefix.ram import Leaves
from swiftlm_engine.prefix.snapshot import floor_of, is_empty, leaf_nbytes
from swiftlm_engine.prefix.ssd import SsdTier

log = logging.getLogger(__name__)

# Where tokens cost nothing on disk (a purely recurrent model), states are this many tokens apart.
_RECURRENT_GAP = 512
# States worth saving of one conversation: after the reply, and before it (thoughts are dropped).
_SAVED_STATES = 2
# What one call copies out at most, so that a step of the engine is not held up.
MAX_COPY_BYTES = 32 << 20


@dataclass(slots=True, eq=False)
class _Pending:
    tokens: bytes
    salt: bytes
    kind: Kind
    parts: dict[Entry, Leaves]  # RAM entries that are still there
    nbytes: int  # about what will be written, as things were when it was made
    is_last_call: bool = False  # its state is lost if it is not written now
    cutter: "_BlockSplitter | None" = None  # made when first needed, gone with any of the parts

    @property
    def length(self) -> int:
        return len(self.tokens) // TOKEN_BYTES

    @property
    def leaves(self) -> Leaves:
        return {position: leaf for part in self.parts.values() for position, leaf in part.items()}


class WritebackQueue:
    """The RAM tier's stores on their way to the SSD."""

    def __init__(self, tier: SsdTier, clock: Callable[[], float]) -> None:
        self._tier = tier
        self._clock = clock
        self._waiting: list[_Pending] = []  # blocks or state still to be written
        self._unpaid: list[_Pending] = []  # only a state that has not paid for itself
        self._copied = 0
        self._since: float | None = None

    @property
    def waiting_since(self) -> float | None:
        """When something last had to wait that has not been copied out: a longer prefix takes the
        place of a shorter one, and its wait over."""
        return self._since if self._waiting else None

    @property
    def waiting_bytes(self) -> int:
        return sum(offer.nbytes for offer in self._waiting)

    def add(self, entries: Iterable[tuple[Entry, Leaves]], kind: Kind) -> None:
        parts = dict(entries)
        entry = next(iter(parts))
        _, length = self._tier.tree.attach_point(entry.tokens, entry.salt)
        held = sum(leaf_nbytes(leaf) for leaves in parts.values() for leaf in leaves.values())
        nbytes = held * (entry.length - length) // entry.length
        self._waiting.append(_Pending(entry.tokens, entry.salt, kind, parts, nbytes))
        if self._since is None:
            self._since = self._clock()

    def pump(self, max_bytes: int = MAX_COPY_BYTES) -> bool:
        """Hand on what the queue takes now; True when nothing is left waiting."""
        self._tier.reap()
        self._copied = 0
        while self._waiting and self._copied < max_bytes:
            if not self._advance(self._waiting[0], max_bytes):
                break
            self._waiting.pop(0)
        if not self._waiting:
            self._since = None
        return not self._waiting

    def release(self, entry: Entry, was_evicted: bool) -> None:
        """The RAM tier lets go of an entry: use its snapshot now or never."""
        if was_evicted:
            self._save_evicted(entry)
        for offers in (self._waiting, self._unpaid):
            for offer in list(offers):
                offer.cutter = None  # it may hold the trunk of another offer
                offer.parts.pop(entry, None)
                if not offer.parts:
                    offers.remove(offer)
        if was_evicted and not self._waiting:
            self._since = None

    def _save_evicted(self, entry: Entry) -> None:
        self._copied = 0
        for offer in [o for o in self._waiting if entry in o.parts]:
            if self._advance(offer, MAX_COPY_BYTES):
                self._waiting.remove(offer)
            else:
                self._tier.count_drop("queue full")
        for offer in [o for o in self._unpaid if entry in o.parts and self._is_newest(o)]:
            offer.is_last_call = True
            self._advance(offer, MAX_COPY_BYTES)

    def last_call(self) -> None:
        """The newest states of every conversation are written now, whether paid or not."""
        for offer in (*self._waiting, *self._unpaid):
            offer.is_last_call = self._is_newest(offer)
        self._waiting += [offer for offer in reversed(self._unpaid) if offer.is_last_call]
        self._unpaid.clear()

    def clear(self) -> None:
        self._waiting.clear()
        self._unpaid.clear()
        self._since = None

    def _is_newest(self, offer: _Pending) -> bool:
        """Whether fewer than `_SAVED_STATES` others that are not on disk continue this one."""
        others = (o for o in (*self._waiting, *self._unpaid) if o is not offer)
        return sum(_continues(other, offer) for other in others) < _SAVED_STATES

    def _advance(self, offer: _Pending, max_bytes: int) -> bool:
        """True when there is nothing more to do for this offer now; False: the queue is full."""
        try:
            return self._write(offer, max_bytes)
        except NotStorable as error:
            log.warning("prefix of %s tokens not written: %s", offer.length, error)
            self._tier.count_drop("not storable")
            return True

    def _write(self, offer: _Pending, max_bytes: int) -> bool:
        """As `_advance`. Raises NotStorable."""
        block, length = self._tier.tree.attach_point(offer.tokens, offer.salt)
        cutter = offer.cutter = offer.cutter or _BlockSplitter(self._tier, self._leaves_of(offer))
        while length < offer.length and cutter.is_complete:
            if self._copied >= max_bytes:
                return False
            step = cutter.write_next(offer, block, length)
            if step.is_dropped:
                return True
            if step.block is None:
                return False
            block, length = step.block, step.block.end
            self._copied += step.block.nbytes
        if block is None or length < offer.length:
            return True
        return self._advance_state(offer, block, cutter.bytes_per_token)

    def _leaves_of(self, offer: _Pending) -> Leaves:
        """Its own, and the trunk of a longer prefix where that has taken its place."""
        trunk = set(self._tier.layout.trunk)
        for longer in (offer, *(o for o in self._waiting if _continues(o, offer))):
            if longer.leaves.keys() >= trunk:
                return {p: leaf for p, leaf in longer.leaves.items() if p in trunk} | offer.leaves
        return offer.leaves

    def _advance_state(self, offer: _Pending, block: Block, bytes_per_token: float) -> bool:
        plan = self._plan_state(offer, block)
        if plan is None:
            return True
        since = offer.length - self._tier.tree.last_state(block, offer.length)
        if not offer.is_last_call and not plan.is_paid(offer, since, bytes_per_token):
            self._unpaid.append(offer)
            return True
        if not self._tier.has_room(plan.nbytes):
            return False
        if self._tier.admit(plan.nbytes, keep=chain_of(block)):
            _write_state(self._tier, offer, block, plan)
            self._copied += plan.nbytes
            self._unpaid = self._unpaid_besides(offer)
        return True

    def _unpaid_besides(self, written: _Pending) -> list[_Pending]:
        """Unpaid states still worth saving now that a later one of the conversation is on disk."""
        before = sorted((o for o in self._unpaid if _continues(written, o)), key=_length)
        superfluous = set(before[: max(0, len(before) - (_SAVED_STATES - 1))])
        return [offer for offer in self._unpaid if offer not in superfluous and offer != written]

    def _plan_state(self, offer: _Pending, block: Block) -> "_StatePlan | None":
        """None where blocks alone restore this position, a state is there, or leaves are gone."""
        layout, tree = self._tier.layout, self._tier.tree
        needs_windows = not tree.covers_windows(tuple(chain_of(block)), offer.length)
        positions = (*layout.whole, *(layout.windows if needs_windows else ()))
        leaves = offer.leaves
        if not positions or not leaves.keys() >= set(positions):
            return None
        if tree.get(state_id(block, offer.length)) is not None:
            return None
        return _StatePlan({p: leaves[p] for p in sorted(positions)}, needs_windows)


@dataclass(frozen=True, slots=True)
class _StatePlan:
    leaves: Leaves
    has_windows: bool

    @property
    def nbytes(self) -> int:
        return sum(map(leaf_nbytes, self.leaves.values()))

    def floor(self, length: int) -> int:
        return max(floor_of(leaf, length) for leaf in self.leaves.values())

    def is_paid(self, offer: _Pending, since: int, bytes_per_token: float) -> bool:
        """Whether `since` tokens are worth the bytes of another state."""
        if offer.kind is Kind.SYSTEM:
            return True  # one for all conversations that begin with it
        if self.floor(offer.length) == 0:
            # Whole only because its class has no token axis: it grows with the tokens, so writing
            # it each time the length has doubled costs twice its bytes in all.
            return 2 * since >= offer.length
        if bytes_per_token == 0:
            return since >= _RECURRENT_GAP
        return since * bytes_per_token >= self.nbytes


@dataclass(frozen=True, slots=True)
class _WriteStep:
    block: Block | None = None
    is_dropped: bool = False


class _BlockSplitter:
    """Cuts the leaves of one offer into blocks.

    It does not hold the offer, which holds it: a cycle would keep KV until a garbage collection.
    """

    def __init__(self, tier: SsdTier, leaves: Leaves) -> None:
        layout = tier.layout
        self._tier = tier
        # Without all trunk leaves (the RAM tier has let them go) no block can be written.
        self.is_complete = leaves.keys() >= set(layout.trunk)
        self._tokens_of: dict[int, TokenArrays | SharedTokens] = {
            position: token_arrays(leaves[position])
            for position in (*layout.trunk, *layout.windows)
            if position in leaves and not is_empty(leaves[position])
        }
        self.bytes_per_token = sum(
            held.nbytes / max(1, held.end - held.first) for held in self._tokens_of.values()
        )

    def write_next(self, offer: _Pending, parent: Block | None, start: int) -> _WriteStep:
        """One block from `start`; no block and not dropped means that the queue is full."""
        tier = self._tier
        end = min(start + tier.limits.block_tokens, offer.length)
        if not tier.has_room(int((end - start) * self.bytes_per_token)):
            return _WriteStep()
        ranges = {p: (max(start, held.first), end) for p, held in self._tokens_of.items()}
        ranges = {p: (low, high) for p, (low, high) in ranges.items() if low < high}
        arrays = [
            (position, array)
            for position, (low, high) in ranges.items()
            for array in self._tokens_of[position].between(low, high)
        ]
        nbytes = sum(array.nbytes for _, array in arrays)
        if not tier.admit(nbytes, keep=chain_of(parent) if parent else ()):
            return _WriteStep(is_dropped=True)
        lows = tuple(ranges.get(p, (end, end))[0] for p in tier.layout.windows)
        return _WriteStep(self._write(offer, parent, start, end, lows, arrays))

    def _write(
        self,
        offer: _Pending,
        parent: Block | None,
        start: int,
        end: int,
        lows: tuple[int, ...],
        arrays: list[tuple[int, mx.array]],
    ) -> Block:
        tokens = offer.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES]
        records, buffers = _copied_out(arrays)
        header = BlockHeader(
            kind=FileKind.BLOCK,
            id=block_id(parent, start, tokens, offer.salt),
            parent=parent.id if parent else "",
            start=start,
            end=end,
            salt=offer.salt,
            tokens=tokens,
            lows=lows,
            arrays=records,
        )
        block = Block(
            id=header.id,
            parent=parent,
            start=start,
            tokens=tokens,
            salt=offer.salt,
            lows=lows,
            nbytes=file_bytes(header),
            last_used=self._tier.now(),
            is_ready=False,
        )
        self._tier.write(block, header, buffers)
        return block


def _write_state(tier: SsdTier, offer: _Pending, block: Block, plan: _StatePlan) -> None:
    trees: list[tuple[int, Any]] = []
    arrays: list[tuple[int, mx.array]] = []
    for position, leaf in plan.leaves.items():
        tree, held = take_apart(leaf)
        trees.append((position, tree))
        arrays.extend((position, array) for array in held)
    records, buffers = _copied_out(arrays)
    header = BlockHeader(
        kind=FileKind.STATE,
        id=state_id(block, offer.length),
        parent=block.id,
        start=offer.length,
        end=offer.length,
        salt=offer.salt,
        floor=plan.floor(offer.length),
        has_windows=plan.has_windows,
        trees=tuple(trees),
        arrays=records,
    )
    state = State(
        id=header.id,
        block=block,
        position=offer.length,
        floor=header.floor,
        has_windows=plan.has_windows,
        nbytes=file_bytes(header),
        last_used=tier.now(),
        is_ready=False,
    )
    tier.write(state, header, buffers)


def _copied_out(
    arrays: list[tuple[int, mx.array]],
) -> tuple[tuple[ArrayRecord, ...], list[bytes]]:
    pairs = [to_bytes(position, array) for position, array in arrays]
    return tuple(record for record, _ in pairs), [data for _, data in pairs]


def _length(offer: _Pending) -> int:
    return offer.length


def _continues(longer: _Pending, shorter: _Pending) -> bool:
    return longer.salt == shorter.salt and longer.tokens.startswith(shorter.tokens)
