"""SSD tier: prefixes that survive restarts, as deltas, behind the back of the engine.

The engine thread decides, copies out and reads; the writer thread gets bytes. A file counts against
the directory limit from the moment it is planned and is served only once it is in place.
`SsdTier` keeps the files; what is written of a stored prefix is decided in `ssd_writeback.py`.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import time
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx

from swiftlm_engine.brain.tokens import pack
from swiftlm_engine.prefix.block_file import BlockHeader, CorruptFile, FileKind, read_payload
from swiftlm_engine.prefix.block_tree import Block, BlockPath, BlockTree, State, ends_of
from swiftlm_engine.prefix.disk_leaves import DiskLayout, from_bytes, leaf_from_tokens, put_together
from swiftlm_engine.prefix.fingerprint import Fingerprint
from swiftlm_engine.prefix.namespace import Deleted, Namespace, load_tree, open_namespace
from swiftlm_engine.prefix.shared_limit import SharedLimit
from swiftlm_engine.prefix.snapshot import Cache, give, leaves_of
from swiftlm_engine.prefix.writer import Disk, PosixDisk, Remove, Touch, Write, Writer

_DAY_S = 86_400.0


class WriteAllowance:
    def __init__(self, bytes_per_day: int, clock: Callable[[], float]) -> None:
        self._bytes_per_day = bytes_per_day
        self._clock = clock
        self._left = float(bytes_per_day)
        self._as_of = clock()

    def covers(self, nbytes: int) -> bool:
        now = self._clock()
        elapsed = max(0.0, now - self._as_of)  # a wall clock may be set back
        regained = elapsed / _DAY_S * self._bytes_per_day
        self._left = min(self._bytes_per_day, self._left + regained)
        self._as_of = now
        return nbytes <= self._left

    def spend(self, nbytes: int) -> None:
        self._left -= nbytes


log = logging.getLogger(__name__)

# Age is kept to the minute: a chain used again within one is not touched on disk again.
_AGE_STEP_S = 60.0
# A full directory is evicted to this share of its limit, so that not every write has to.
_EVICT_TO = 0.95


# Per leaf, per block, the leaf's arrays.
_Pieces = dict[int, list[list[mx.array]]]


@dataclass(frozen=True, slots=True)
class SsdLimits:
    max_bytes: int
    min_free_bytes: int = 10 << 30
    queue_bytes: int = 256 << 20
    block_tokens: int = 256
    max_bytes_per_day: int = 256 << 30
    lock_wait_s: float = 6.0


@dataclass(frozen=True, slots=True)
class SsdStats:
    num_files: int
    nbytes: int
    max_bytes: int
    queued_bytes: int
    bytes_written: int
    bytes_read: int
    num_evicted: int
    num_corrupt: int
    dropped: dict[str, int]
    deleted: tuple[Deleted, ...]


@dataclass(slots=True)
class _SsdCounters:
    bytes_written: int = 0
    bytes_read: int = 0
    num_evicted: int = 0
    num_corrupt: int = 0
    dropped: dict[str, int] = field(default_factory=dict)


class SsdTier:
    """The files of one model and fingerprint under `root`. Raises FolderInUse when it is taken."""

    def __init__(
        self,
        root: Path,
        fingerprint: Fingerprint,
        new_caches: Callable[[], Sequence[Cache]],
        limits: SsdLimits,
        clock: Callable[[], float] = time.time,
        disk: Disk | None = None,
        shared: SharedLimit | None = None,
    ) -> None:
        self.layout = DiskLayout.of(leaves_of(new_caches()))
        self.limits = limits
        self._shared = shared
        self.tree = BlockTree(self.layout.window_sizes, bool(self.layout.whole))
        self._clock = clock
        self._disk = disk or PosixDisk()
        self._writer = Writer(limits.queue_bytes, self._disk)
        self._allowance = WriteAllowance(limits.max_bytes_per_day, clock)
        self._counters = _SsdCounters()
        self._planned: dict[str, BlockHeader] = {}  # files that are not in place yet
        self._namespace: Namespace = open_namespace(root, fingerprint, limits.lock_wait_s)
        self._is_closed = False
        self._is_lost = False  # the folder could not be asked when something was last written
        try:
            self._counters.num_corrupt = load_tree(self._namespace, self.tree)
            self._make_room(0, keep=())
        except OSError:
            self._namespace.close()
            raise
        for deleted in self._namespace.deleted:
            changed = ", ".join(deleted.changed)
            log.warning("prefix files deleted: %s bytes, changed: %s", deleted.nbytes, changed)

    # ---- serving ----

    def find(self, token_ids: Sequence[int], max_length: int, salt: bytes) -> BlockPath | None:
        self.reap()
        return self.tree.find(pack(token_ids[:max_length]), max_length, salt)

    def restore(self, route: BlockPath) -> Generator[bool, None, list[Cache] | None]:
        """Returns the leaves at `route.length`; None when a file cannot be read: a damaged one is
        deleted, and with one that is gone forgotten, others may be read the next time. Pauses after
        each file and each leaf, so that decode can go on in between."""
        # First, so that nothing on the route is evicted during a pause.
        self.touch(route.state or route.blocks[-1])
        self.touch(route.blocks[-1])
        pieces: _Pieces = {}
        buffer = bytearray()
        for block, end in zip(route.blocks, ends_of(route.blocks, route.length), strict=True):
            if not self._read_block(block, end, buffer, pieces):
                return None
            yield True
        whole = self._read_state(route, buffer)
        if whole is None:
            return None
        leaves = []
        for position, empty in enumerate(self.layout.leaves):
            if position in whole:
                leaves.append(whole[position])
            elif position in pieces:
                leaves.append(self._joined(position, pieces.pop(position), route.length))
                yield True
            else:
                leaves.append(copy.deepcopy(empty))
        return leaves

    def _read_block(self, block: Block, end: int, buffer: bytearray, pieces: _Pieces) -> bool:
        """Add the block's arrays, cut at `end`, to the pieces of their leaves."""
        read = self._read(block, FileKind.BLOCK, buffer)
        if read is None:
            return False
        header, views = read
        by_leaf: dict[int, list[mx.array]] = {}
        for record, view in zip(header.arrays, views, strict=True):
            first = block.end - record.shape[2]
            array = from_bytes(record, view)[:, :, : max(0, end - first)]
            by_leaf.setdefault(record.leaf, []).append(array)
        for leaf, arrays in by_leaf.items():
            pieces.setdefault(leaf, []).append(arrays)
        return True

    def _read_state(self, route: BlockPath, buffer: bytearray) -> dict[int, Cache] | None:
        if route.state is None:
            return {}
        read = self._read(route.state, FileKind.STATE, buffer)
        if read is None:
            return None
        header, views = read
        arrays: dict[int, list[mx.array]] = {}
        for record, view in zip(header.arrays, views, strict=True):
            arrays.setdefault(record.leaf, []).append(from_bytes(record, view))
        shorter_by = route.state.position - route.length
        whole = {}
        for position, tree in header.trees:
            leaf = put_together(self.layout.leaves[position], tree, arrays.get(position, []))
            whole[position] = give(leaf, route.length, shorter_by)
        return whole

    def _joined(self, position: int, pieces: list[list[mx.array]], length: int) -> Cache:
        """One leaf from its pieces; evaluated, so that the pieces can go."""
        arrays = [mx.concatenate(column, axis=2) for column in zip(*pieces, strict=True)]
        if position in self.layout.windows:
            window = self.layout.window_sizes[self.layout.windows.index(position)]
            arrays = [a[:, :, -window:] for a in arrays]
        arrays = [mx.contiguous(a) for a in arrays]
        mx.eval(arrays)
        return leaf_from_tokens(self.layout.leaves[position], arrays, length)

    def _read(
        self, item: Block | State, kind: FileKind, buffer: bytearray
    ) -> tuple[BlockHeader, list[memoryview]] | None:
        if self.tree.get(item.id) is not item:
            return None  # removed during a pause
        path = self._namespace.path(kind, item.id)
        try:
            header, views = read_payload(path, buffer)
        except (CorruptFile, FileNotFoundError) as error:
            log.warning("prefix file deleted: %s: %s", path.name, error)
            self._counters.num_corrupt += 1
            self.discard(item)
            return None
        except OSError as error:  # too many open files: no fault of this one
            log.warning("prefix file not read: %s: %s", path.name, error)
            return None
        self._counters.bytes_read += item.nbytes
        return header, views

    # ---- writing, for ssd_writeback.py ----

    def has_room(self, nbytes: int) -> bool:
        """Whether the writer's queue takes that many bytes now."""
        return self._writer.has_room(nbytes)

    @property
    def is_writing(self) -> bool:
        return self._writer.queued_bytes > 0

    def admit(self, nbytes: int, keep: Collection[Block | State]) -> bool:
        """Make room in the directory, never at the cost of `keep`; False counts as a drop."""
        if not self._allowance.covers(nbytes):
            self.count_drop("daily writes spent")
            return False
        try:
            has_room = self._make_room(nbytes, keep)
        except OSError as error:
            self._lose_folder(error)
            return False
        self._is_lost = False
        if not has_room:
            self.count_drop("directory full")
            return False
        self._allowance.spend(nbytes)
        return True

    def _lose_folder(self, error: OSError) -> None:
        """Somebody deleted the folder, or its volume went: what is asked for next is prefilled."""
        self.count_drop("folder gone")
        if not self._is_lost:
            log.warning("prefix cache folder cannot be used, prefixes stay in memory: %s", error)
        self._is_lost = True
        if isinstance(error, FileNotFoundError):
            self._forget_all()
            with contextlib.suppress(OSError):
                self._namespace.make_folder()

    def write(self, item: Block | State, header: BlockHeader, buffers: list[bytes]) -> None:
        """Plan the file into the tree and hand its bytes to the writer."""
        self.tree.add(item)
        self._planned[item.id] = header
        self._writer.submit(
            Write(self._namespace.path(header.kind, item.id), header, tuple(buffers))
        )

    def now(self) -> float:
        return self._clock() // _AGE_STEP_S * _AGE_STEP_S

    def touch(self, item: Block | State) -> None:
        now = self.now()
        for older in self.tree.touch(item, now):
            if older.is_ready:
                self._submit(Touch(self._path(older), now))

    def count_drop(self, reason: str) -> None:
        self._counters.dropped[reason] = self._counters.dropped.get(reason, 0) + 1

    def reap(self) -> None:
        """Take note of what the writer has done."""
        for result in self._writer.results():
            self._counters.bytes_written += result.num_bytes
            item = self.tree.get(result.id)
            # Else it was discarded meanwhile; what is planned there now is another write.
            if item is None or self._planned.get(result.id) is not result.header:
                continue
            del self._planned[result.id]
            if result.error is None:
                item.is_ready = True
            else:
                log.warning("prefix file not written: %s", result.error)
                self.count_drop("write failed")
                self.discard(item)

    def discard(self, item: Block | State) -> None:
        """Forget a file and all that hangs on it, and delete them."""
        for gone in self.tree.remove(item):
            self._planned.pop(gone.id, None)
            self._submit(Remove(self._path(gone), gone.nbytes))

    # ---- life ----

    def stats(self) -> SsdStats:
        self.reap()
        counters = self._counters
        return SsdStats(
            num_files=len(self.tree),
            nbytes=self.tree.nbytes,
            max_bytes=self.limits.max_bytes,
            queued_bytes=self._writer.queued_bytes,
            bytes_written=counters.bytes_written,
            bytes_read=counters.bytes_read,
            num_evicted=counters.num_evicted,
            num_corrupt=counters.num_corrupt,
            dropped=dict(counters.dropped),
            deleted=self._namespace.deleted,
        )

    def clear(self) -> None:
        """Of this model nothing is kept, in no KV format."""
        self._namespace.delete_others()
        self._forget_all()

    def _forget_all(self) -> None:
        for item in self.tree.items():
            if self.tree.get(item.id) is item:
                self.discard(item)

    def drain(self, deadline_s: float) -> bool:
        """Wait until what was submitted is on disk; False at the deadline."""
        drained = self._writer.drain(deadline_s)
        self.reap()
        return drained

    def close(self, deadline_s: float) -> bool:
        until = time.monotonic() + deadline_s
        drained = self.drain(deadline_s)  # a write that failed asks for removals: while they can be
        drained &= self._writer.close(max(0.0, until - time.monotonic()))
        self._is_closed = True
        self.reap()
        self._namespace.close()
        return drained

    def _submit(self, operation: Remove | Touch) -> None:
        """Nothing once closed: the next start deletes what hangs on nothing."""
        if not self._is_closed:
            self._writer.submit(operation)

    def _path(self, item: Block | State) -> Path:
        kind = FileKind.BLOCK if isinstance(item, Block) else FileKind.STATE
        return self._namespace.path(kind, item.id)

    def _make_room(self, nbytes: int, keep: Collection[Block | State]) -> bool:
        """Evict until `nbytes` more fit under the limit and above the free-space floor."""
        needed = self._excess(nbytes)
        if needed <= 0:
            return True
        wanted, freed = needed + int(self.limits.max_bytes * (1 - _EVICT_TO)), 0
        replaceable = (i.nbytes for i in self.tree.items() if i.is_ready and i not in keep)
        if sum(replaceable) < needed:  # others fill the disk: what is there would go for nothing
            return False
        for item in self.tree.by_age():
            hangs_on = isinstance(item, Block) and (item.children or item.states)
            if freed < wanted and item.is_ready and not hangs_on and item not in keep:
                freed += item.nbytes
                self._counters.num_evicted += 1
                self.discard(item)
        return freed >= needed

    def _excess(self, nbytes: int) -> int:
        """Bytes that have to go before `nbytes` more may come."""
        over_limit = self.tree.nbytes + self._others_bytes() + nbytes - self.limits.max_bytes
        free = self._disk.free_bytes(self._namespace.folder) + self._writer.pending_free_bytes
        return max(over_limit, self.limits.min_free_bytes + nbytes - free)

    def _others_bytes(self) -> int:
        """Of other models in the same folder: the limit is that of all together."""
        if self._shared is None:
            return 0
        self._shared.refresh(self._oldest)
        return self._shared.others_bytes

    def _oldest(self) -> float:
        return min((item.last_used for item in self.tree.items()), default=self._clock())
