"""Snapshots of every cache class: nothing is copied, nothing stored ever changes."""

import copy

import mlx.core as mx
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from swiftlm_engine.prefix.disk_leaves import NotStorable, take_apart
from swiftlm_engine.prefix.snapshot import (
    LeafKind,
    arrays_of,
    assemble,
    compact,
    floor_of,
    give,
    kind_of,
    leaf_nbytes,
    leaves_of,
    length_of,
    take,
)

HEADS, DIM = 2, 64


pytestmark = pytest.mark.usefixtures("on_the_cpu")


def keys(count: int, seed: int = 0) -> mx.array:
    return mx.random.normal((1, HEADS, count, DIM), key=mx.random.key(seed))


def filled(leaf, count: int, seed: int = 0):
    leaf.update_and_fetch(keys(count, seed), keys(count, seed + 1))
    mx.eval(arrays_of(leaf))
    return leaf


MAKERS = {
    "plain": KVCache,
    "quantised": QuantizedKVCache,
    "concatenating": ConcatenateKVCache,
    "rotating": lambda: RotatingKVCache(max_size=512),
    "chunked": lambda: ChunkedKVCache(512),
}


def fetched(leaf, count: int = 1, seed: int = 9) -> list[list[float]]:
    """What attention would see after `count` more tokens."""
    result = leaf.update_and_fetch(keys(count, seed), keys(count, seed + 1))
    mx.eval(result)
    return [a.tolist() for pair in result for a in (pair if isinstance(pair, tuple) else [pair])]


def recurrent() -> ArraysCache:
    leaf = ArraysCache(2)
    leaf[0], leaf[1] = mx.ones((1, 3, DIM)), mx.ones((1, HEADS, DIM, DIM))
    mx.eval(leaf[0], leaf[1])
    return leaf


@pytest.mark.parametrize("name", MAKERS)
def test_extending_what_was_given_never_changes_the_snapshot(name):
    snapshot = take(filled(MAKERS[name](), 100))
    before = [a.tolist() for a in arrays_of(snapshot)]
    for length in (100, 60):
        leaf = give(snapshot, length, 100 - length)
        for seed in range(3):
            fetched(leaf, 3, seed)
    assert [a.tolist() for a in arrays_of(snapshot)] == before
    assert length_of(snapshot) == 100


@pytest.mark.parametrize("name", MAKERS)
def test_extending_the_live_cache_never_changes_the_snapshot(name):
    live = filled(MAKERS[name](), 100)
    snapshot = take(live)
    before = [a.tolist() for a in arrays_of(snapshot)]
    fetched(live)
    assert [a.tolist() for a in arrays_of(snapshot)] == before


@pytest.mark.parametrize("name", MAKERS)
def test_given_leaf_equals_one_that_never_saw_the_rest(name):
    snapshot = take(filled(MAKERS[name](), 100))
    cold = filled(MAKERS[name](), 100)
    assert fetched(give(snapshot, 100, 0)) == fetched(cold)
    short = MAKERS[name]()
    short.update_and_fetch(keys(100)[:, :, :60], keys(100, 1)[:, :, :60])
    assert fetched(give(snapshot, 60, 40)) == fetched(short)


@pytest.mark.parametrize("name", MAKERS)
def test_concurrent_hits_on_one_snapshot_do_not_see_each_other(name):
    snapshot = take(filled(MAKERS[name](), 100))
    alone = fetched(give(snapshot, 100, 0), seed=5)
    twins = [give(snapshot, 100, 0) for _ in range(3)]
    assert [fetched(leaf, seed=s) for leaf, s in zip(twins, (4, 5, 6), strict=True)][1] == alone


def test_recurrent_state_is_given_by_handle_and_replaced_only_in_the_copy():
    snapshot = take(recurrent())
    leaf = give(snapshot, 10, 0)
    leaf[0] = leaf[0] * 2
    leaf[1][..., 0] = 5
    leaf.lengths = mx.array([3])
    assert snapshot[0].sum().item() == 3 * DIM
    assert snapshot[1].sum().item() == HEADS * DIM * DIM
    assert snapshot.lengths is None


@pytest.mark.parametrize("name", MAKERS)
def test_taking_and_giving_copy_no_data(name):
    live = filled(MAKERS[name](), 512)
    held = mx.get_active_memory()
    snapshot = take(live)
    mx.eval(arrays_of(snapshot))
    given = [give(snapshot, length, 512 - length) for length in (512, 511, 300) for _ in range(5)]
    for leaf in given:
        mx.eval(arrays_of(leaf))
    assert mx.get_active_memory() - held < leaf_nbytes(live) / 50


def test_first_write_after_a_cut_copies_only_what_is_used():
    snapshot = take(filled(KVCache(), 4096))
    leaf = give(snapshot, 256, 4096 - 256)
    held = mx.get_active_memory()
    fetched(leaf)
    assert mx.get_active_memory() - held < leaf_nbytes(snapshot) / 4


def test_unused_steps_are_not_kept():
    live = filled(KVCache(), 10)
    assert leaf_nbytes(take(live)) == leaf_nbytes(live) * 10 // 256


def test_window_that_a_prefill_chunk_overfilled_is_cut_to_its_size():
    live = filled(RotatingKVCache(max_size=64), 300)
    snapshot = take(live)
    assert arrays_of(snapshot)[0].shape[2] == 64
    assert fetched(give(snapshot, 300, 0)) == fetched(copy.deepcopy(live))
    assert fetched(give(snapshot, 300, 0), 7) == fetched(copy.deepcopy(live), 7)


@pytest.mark.parametrize(
    ("leaf", "count", "kind", "floor"),
    [
        (KVCache(), 100, LeafKind.TRUNK, 0),
        (RotatingKVCache(64), 63, LeafKind.WINDOW, 0),
        (RotatingKVCache(64), 64, LeafKind.WINDOW, 64),
        (RotatingKVCache(64, keep=4), 100, LeafKind.STATE, 100),
        (ChunkedKVCache(64), 100, LeafKind.WINDOW, 0),
    ],
)
def test_floor_is_the_shortest_prefix_a_class_can_go_back_to(leaf, count, kind, floor):
    filled(leaf, count)
    assert (kind_of(leaf), floor_of(leaf, count)) == (kind, floor)


def test_chunked_cache_that_slid_serves_its_own_length_only():
    leaf = filled(ChunkedKVCache(64), 100)
    leaf.maybe_trim_front()
    assert leaf.is_trimmable()  # what it says
    assert floor_of(leaf, 100) == 100


def test_recurrent_state_serves_its_own_length_only():
    assert floor_of(recurrent(), 77) == 77


def test_layer_that_was_never_fed_serves_every_length():
    assert floor_of(KVCache(), 77) == 0
    assert floor_of(ArraysCache(2), 77) == 0
    assert give(take(KVCache()), 5, 72).empty()


def test_cache_lists_are_taken_apart_and_nested_again():
    inner = CacheList(filled(KVCache(), 5), recurrent())
    caches = [CacheList(inner, filled(KVCache(), 5)), filled(KVCache(), 5)]
    leaves = leaves_of(caches)
    assert len(leaves) == 4
    rebuilt = assemble(caches, iter([give(take(leaf), 5, 0) for leaf in leaves]))
    assert isinstance(rebuilt[0][0], CacheList)
    assert rebuilt[0][0][0].offset == 5
    assert rebuilt[0][0][0] is not inner[0]
    assert inner[0] is caches[0][0][0]


class _Unknown:
    """A class no code here has heard of: nested storage, written in place."""

    class _Store:
        __slots__ = ("num", "rows")

        def __init__(self):
            self.rows = mx.zeros((1, HEADS, 32, DIM))
            self.num = 0

    def __init__(self):
        self.store = self._Store()

    def update_and_fetch(self, k, v):
        store, count = self.store, k.shape[2]
        store.rows[:, :, store.num : store.num + count] = k
        store.num += count
        return store.rows[:, :, : store.num], v

    @property
    def offset(self):
        return self.store.num

    @property
    def state(self):
        return self.store.rows, self.store.num

    @state.setter
    def state(self, value):
        self.store = self._Store()
        self.store.rows, self.store.num = value

    def is_trimmable(self):
        return True

    def trim(self, count):
        self.store.num -= count
        return count


def test_unknown_class_is_shared_and_cut_through_the_protocol():
    live = _Unknown()
    live.update_and_fetch(keys(10), keys(10, 1))
    snapshot = take(live)
    before = snapshot.state[0].tolist()
    leaf = give(snapshot, 6, 4)
    leaf.update_and_fetch(keys(5, 7), keys(5, 8))
    live.update_and_fetch(keys(5, 7), keys(5, 8))
    assert (leaf.offset, live.offset, snapshot.offset) == (11, 15, 10)
    assert snapshot.state[0].tolist() == before
    assert kind_of(live) is LeafKind.STATE
    assert floor_of(live, 15) == 0


def test_class_that_trims_less_than_asked_is_refused():
    class Stubborn(_Unknown):
        def trim(self, count):
            return 0

    live = Stubborn()
    live.update_and_fetch(keys(10), keys(10, 1))
    with pytest.raises(ValueError, match="trimmed 0 of 4"):
        give(take(live), 6, 4)


def test_compacted_leaf_lets_the_buffer_it_came_from_go():
    snapshot = take(filled(KVCache(), 4096))
    held, was = mx.get_active_memory(), leaf_nbytes(snapshot)
    short = compact(give(snapshot, 64, 4096 - 64))
    mx.eval(arrays_of(short))
    del snapshot
    assert held - mx.get_active_memory() > was * 0.9
    assert leaf_nbytes(short) == 2 * HEADS * 64 * DIM * 4


def big(*shape: int) -> mx.array:
    array = mx.random.normal(shape, key=mx.random.key(1))
    mx.eval(array)
    return array


def plain_beginning():
    return give(take(filled(KVCache(), 4096)), 1024, 3072)


def quantised_beginning():
    return give(take(filled(QuantizedKVCache(), 4096)), 1024, 3072)


def chunked_beginning():
    return give(take(filled(ChunkedKVCache(8192), 4096)), 1024, 3072)


def overfilled_ring():
    return filled(RotatingKVCache(max_size=256), 4096)


def ring_that_keeps_its_first():
    return filled(RotatingKVCache(max_size=256, keep=4), 4096)


def end_of_a_chunk():
    """What a convolution keeps of the inputs of a chunk."""
    leaf = ArraysCache(2)
    leaf[0], leaf[1] = big(1, 4096, 512)[:, -64:, :], big(1, 64, 512)
    return leaf


def row_of_a_batch():
    batch = ArraysCache(2)
    batch[0], batch[1] = big(16, 3, 16384), big(16, HEADS, 64, 512)
    return batch.extract(5)


def row_of_a_batch_of_plain_caches():
    return KVCache.merge([filled(KVCache(), 1024, seed) for seed in range(8)]).extract(3)


class _Window:
    """As some models have their own: no setter, rows of a chunk as they are."""

    def __init__(self):
        self.offset = 4096
        self.rows = [big(1, 4096, 512)[:, -128:]]

    @property
    def state(self):
        return self.rows, mx.array(self.offset)

    def is_trimmable(self):
        return False


@pytest.mark.parametrize(
    "make",
    [
        plain_beginning,
        quantised_beginning,
        chunked_beginning,
        overfilled_ring,
        ring_that_keeps_its_first,
        end_of_a_chunk,
        row_of_a_batch,
        row_of_a_batch_of_plain_caches,
        _Window,
    ],
)
def test_snapshot_holds_no_more_than_it_counts(make):
    mx.synchronize()
    before = mx.get_active_memory()
    snapshot = take(make())
    mx.eval(arrays_of(snapshot))
    mx.synchronize()
    held = mx.get_active_memory() - before
    assert leaf_nbytes(snapshot) <= held + 64
    assert held <= 1.05 * leaf_nbytes(snapshot) + 4096


def test_state_that_could_not_be_put_back_is_not_taken_apart():
    with pytest.raises(NotStorable):
        take_apart(_Window())
