"""Turbo caches behind mlx-lm's protocol: what they hold, forget, share and never read."""

import copy
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx.utils import tree_flatten

from swiftlm_engine.turboquant import TurboBatchKVCache, TurboKVCache
from swiftlm_engine.turboquant.backend import PlainBackend
from swiftlm_engine.turboquant.cache import AttentionNotRouted, WindowNotSupported
from swiftlm_engine.turboquant.formats import FORMATS, K4V3, K8V3, KVFormat, num_pages

HEADS, QUERY_HEADS, DIM = 2, 6, 32
SCALE = DIM**-0.5


def tokens(count: int, seed: int = 0) -> SimpleNamespace:
    mx.random.seed(seed)
    return SimpleNamespace(
        q=mx.random.normal((1, QUERY_HEADS, count, DIM)),
        k=mx.random.normal((1, HEADS, count, DIM)) + 3 * mx.random.normal((1, HEADS, 1, DIM)),
        v=mx.random.normal((1, HEADS, count, DIM)),
    )


def new_cache(format: KVFormat = K4V3) -> TurboKVCache:
    return TurboKVCache(format, DIM, PlainBackend())


def feed(cache, t: SimpleNamespace, start: int, stop: int, chunk: int = 64) -> mx.array:
    outs = []
    for at in range(start, stop, chunk):
        part = slice(None), slice(None), slice(at, min(at + chunk, stop))
        cache.update_and_fetch(t.k[part], t.v[part])
        outs.append(cache.attend(t.q[part], SCALE))
    return mx.concatenate(outs, axis=2)


def exact(t: SimpleNamespace, stop: int) -> mx.array:
    q, k, v = (x[:, :, :stop] for x in (t.q, t.k, t.v))
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=SCALE, mask="causal")


def relative(got: mx.array, wanted: mx.array) -> float:
    return (mx.linalg.norm(got - wanted) / mx.linalg.norm(wanted)).item()


def test_short_sequences_are_exact():
    t = tokens(131)
    cache = new_cache()
    assert mx.allclose(feed(cache, t, 0, 131, 13), exact(t, 131), atol=1e-5)
    assert cache.num_compressed == 0


@pytest.mark.parametrize("length", [132, 196, 580, 581, 1100])
def test_everything_old_is_compressed_and_attention_stays_close(length: int):
    t = tokens(length)
    cache = new_cache()
    out = feed(cache, t, 0, length)
    assert cache.offset == cache.size() == length
    assert cache.num_compressed == num_pages(length) * 64 > 0
    assert 68 <= cache.kv.num_exact < 132
    assert relative(out[:, :, -64:], exact(t, length)[:, :, -64:]) < 0.2


@pytest.mark.parametrize("format", FORMATS.values(), ids=lambda f: f.name)
def test_attention_equals_attention_over_the_expanded_cache(format: KVFormat):
    t = tokens(900)
    cache = new_cache(format)
    feed(cache, t, 0, 899)
    part = slice(None), slice(None), slice(899, 900)
    cache.update_and_fetch(t.k[part], t.v[part])
    keys, values = cache.keys_and_values()
    wanted = mx.fast.scaled_dot_product_attention(t.q[part], keys, values, scale=SCALE)
    assert relative(cache.attend(t.q[part], SCALE), wanted) < 1e-5


def test_several_queries_see_only_their_past():
    t = tokens(700)
    cache = new_cache()
    feed(cache, t, 0, 680)
    together, alone = cache.fork(), cache
    out = feed(together, t, 680, 700, 20)
    for at in range(680, 700):
        one = feed(alone, t, at, at + 1)
        assert relative(out[:, :, at - 680 : at - 679], one) < 1e-5


def test_chunks_do_not_matter_beyond_what_is_exact():
    t = tokens(1000)
    by_one, whole = new_cache(K8V3), new_cache(K8V3)
    feed(by_one, t, 0, 1000, 8)
    feed(whole, t, 0, 1000, 500)
    assert by_one.num_compressed == whole.num_compressed
    a, b = by_one.keys_and_values()[0], whole.keys_and_values()[0]
    assert relative(a, b) < 0.01


def test_resident_bytes_are_a_quarter_of_half_precision():
    cache = TurboKVCache(K4V3, 128, PlainBackend())
    cache.update_and_fetch(*2 * [mx.random.normal((1, 1, 32768, 128)).astype(mx.float16)])
    cache.kv.flush(mx.random.normal((1, 1, 128)), PlainBackend().encode)
    mx.eval(cache.state)
    fp16 = 2 * 32768 * 128 * 2
    assert cache.nbytes <= 0.24 * fp16
    assert abs(cache.nbytes / K4V3.sequence_bytes(32768, 128) - 1) < 0.01


def test_slack_stays_small_while_decoding():
    cache = TurboKVCache(K4V3, 128, PlainBackend())
    for count in (8192, 64, 64, 64):
        cache.kv.append(*2 * [mx.random.normal((1, count, 128)).astype(mx.float16)])
        cache.kv.flush(mx.random.normal((1, 1, 128)), PlainBackend().encode)
    held = K4V3.sequence_bytes(cache.offset, 128)
    assert held < cache.nbytes < held * 1.08


@pytest.mark.parametrize("count", [0, 1, 60, 63, 64, 65, 200, 700, 895, 896, 897, 900, 2000])
def test_trim_forgets_the_newest_and_keeps_the_rest(count: int):
    t = tokens(900)
    cache = new_cache(K8V3)
    feed(cache, t, 0, 900)
    before = cache.keys_and_values()[0]
    assert cache.trim(count) == min(count, 900)
    left = 900 - min(count, 900)
    assert cache.offset == left
    if left:
        assert relative(cache.keys_and_values()[0], before[:, :, :left]) < 1e-5


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["feed", "trim"]), st.integers(1, 300)), max_size=8))
def test_random_feeds_and_trims_keep_what_was_fed(steps: list[tuple[str, int]]):
    t = tokens(2400)
    cache, length = new_cache(K8V3), 0
    for action, count in steps:
        if action == "feed":
            feed(cache, t, length, length + count)
            length += count
        else:
            length -= cache.trim(count)
        poison(cache)
        assert cache.offset == length
    if length:
        assert relative(cache.keys_and_values()[0], t.k[:, :, :length]) < 0.05
        feed(cache, t, length, length + 1)


def poison(cache: TurboKVCache) -> None:
    """Fill all that lies beyond the counts with what shows if it is read."""
    kv = cache.kv
    zone = kv.settled()
    if zone is not None:
        zone[:, :, kv.num_exact :] = float("nan")
    if kv.pages is not None:
        for held in kv.pages.arrays():
            stale = 2**32 - 1 if held.dtype == mx.uint32 else float("nan")
            held[:, kv.num_pages :] = stale


def test_stale_pages_and_exact_tokens_are_never_read():
    t = tokens(1300)
    cache, clean = new_cache(), new_cache()
    feed(cache, t, 0, 1200)
    cache.trim(500)
    poison(cache)
    out = feed(cache, t, 700, 1300, 40)
    assert mx.all(mx.isfinite(out))
    feed(clean, t, 0, 1300)
    assert relative(out[:, :, -1:], feed(clean, t, 1299, 1300)) < 0.5
    assert mx.all(mx.isfinite(cache.keys_and_values()[0]))


def test_fork_and_original_go_their_own_ways():
    t, other = tokens(1000), tokens(1000, seed=1)
    cache = new_cache()
    feed(cache, t, 0, 700)
    wanted = feed(copy.deepcopy(cache), t, 700, 1000)
    twin = cache.fork()
    feed(twin, other, 700, 1000)
    twin.trim(900)
    assert mx.array_equal(feed(cache, t, 700, 1000), wanted)


def test_fork_that_is_cut_and_poisoned_spoils_neither_side():
    t = tokens(1400)
    cache = new_cache()
    feed(cache, t, 0, 1200)
    wanted = feed(cache.fork(), t, 1200, 1300)
    twin = cache.fork()
    twin.trim(700)
    poison(twin)
    assert mx.all(mx.isfinite(feed(twin, t, 500, 1400, 40)))
    assert mx.array_equal(feed(cache, t, 1200, 1300), wanted)


def test_rows_cut_and_poisoned_before_they_are_merged_stay_readable():
    t = tokens(1000)
    rows = [new_cache(), new_cache()]
    for row, cut in zip(rows, (500, 70), strict=True):
        feed(row, t, 0, 800)
        row.trim(cut)
        poison(row)
    alone = [row.fork() for row in rows]
    batch = new_cache().merge(rows)
    batch.trim(3)
    for row in batch.rows:
        poison(row)
    for row in alone:
        row.trim(3)
    for at in range(850, 920):
        out = step(batch, t, at)
        for i, row in enumerate(alone):
            assert mx.array_equal(out[i : i + 1], feed(row, t, at, at + 1))


def test_rewound_state_does_not_read_what_was_after_it():
    t = tokens(900)
    cache = new_cache()
    feed(cache, t, 0, 600)
    early = cache.fork()
    wanted = feed(early.fork(), t, 600, 700)
    feed(cache, t, 600, 900)
    poison(cache)
    cache.state = early.state
    assert mx.array_equal(feed(cache, t, 600, 700), wanted)


def test_peak_of_a_layer_while_it_prefills_stays_below_half():
    """Right after a chunk has come in, when it is held exactly beside all that is compressed."""
    cache = TurboKVCache(K4V3, 64, PlainBackend())
    chunk, peak = 1024, 0
    for _ in range(16):
        k, v = (mx.random.normal((1, 1, chunk, 64)).astype(mx.float16) for _ in range(2))
        cache.update_and_fetch(k, v)
        peak = max(peak, cache.nbytes)
        cache._unanswered = False  # the attention is not what is measured
        cache.kv.flush(mx.random.normal((1, 1, 64)), PlainBackend().encode)
        mx.eval(cache.state)
    assert peak <= 0.45 * 16 * chunk * 64 * 4


def test_cut_of_a_long_entry_does_not_copy_what_was_cut_off():
    t = tokens(4000)
    entry = new_cache()
    feed(entry, t, 0, 4000, 500)
    mx.eval(entry.state)
    twin = entry.fork()
    twin.trim(3400)
    feed(twin, t, 600, 800)
    mx.eval(twin.state)
    assert twin.nbytes < 0.5 * entry.nbytes


@pytest.mark.parametrize("length", [0, 50, 700])
@pytest.mark.parametrize("format", FORMATS.values(), ids=lambda f: f.name)
def test_state_round_trip_gives_the_same_attention(format: KVFormat, length: int):
    t = tokens(720)
    cache = new_cache(format)
    if length:
        feed(cache, t, 0, length)
    again = TurboKVCache.from_state(cache.fork().state)
    assert (again.offset, again.format, again.nbytes) == (cache.offset, format, cache.nbytes)
    assert mx.array_equal(feed(again, t, length, 720), feed(cache, t, length, 720))


def test_state_is_made_of_arrays_numbers_and_names_only():
    cache = new_cache()
    feed(cache, tokens(200), 0, 200)
    kinds = {type(leaf) for _, leaf in tree_flatten(cache.state)}
    assert kinds <= {mx.array, int, str, type(None)}


def test_attention_that_was_not_routed_is_an_error_not_a_short_context():
    t = tokens(2)
    cache = new_cache()
    cache.update_and_fetch(t.k, t.v)
    with pytest.raises(AttentionNotRouted, match="install"):
        cache.update_and_fetch(t.k, t.v)


def test_sliding_window_mask_is_refused():
    cache = new_cache()
    assert cache.make_mask(1) is None
    assert cache.make_mask(4) == "causal"
    with pytest.raises(WindowNotSupported):
        cache.make_mask(40, window_size=32)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, 1e5, 1e-40])
def test_bad_keys_leave_the_other_tokens_readable(bad: float):
    t = tokens(700)
    t.k[:, :, 100:101] = bad
    cache = new_cache()
    cache.update_and_fetch(t.k, t.v)
    cache.attend(t.q, SCALE)
    assert mx.all(mx.isfinite(feed(cache, tokens(8), 0, 8)))


LENGTHS = [3, 140, 700]


def batch_of(lengths: list[int], t: SimpleNamespace) -> tuple[TurboBatchKVCache, list]:
    rows = []
    for length in lengths:
        rows.append(new_cache())
        feed(rows[-1], t, 0, length)
    return new_cache().merge([row.fork() for row in rows]), rows


def step(batch: TurboBatchKVCache, t: SimpleNamespace, at: int) -> mx.array:
    one = slice(None), slice(None), slice(at, at + 1)
    size = len(batch.rows)
    batch.update_and_fetch(*(mx.repeat(x[one], size, 0) for x in (t.k, t.v)))
    return batch.attend(mx.repeat(t.q[one], size, 0), SCALE)


def test_batch_of_unequal_lengths_equals_its_rows_alone():
    t = tokens(900)
    batch, rows = batch_of(LENGTHS, t)
    assert batch.left_padding.tolist() == [697, 560, 0]
    for at in range(800, 870):
        out = step(batch, t, at)
        for i, row in enumerate(rows):
            assert mx.array_equal(out[i : i + 1], feed(row, t, at, at + 1))
    assert batch.offset.tolist() == [n + 70 for n in LENGTHS]
    assert batch.nbytes == sum(row.nbytes for row in rows)


def test_filter_extend_and_extract_keep_every_row():
    t = tokens(900)
    batch, rows = batch_of(LENGTHS, t)
    other, (extra,) = batch_of([300], t)
    batch.filter(mx.array([2, 0]))
    batch.extend(other)
    assert batch.offset.tolist() == [700, 3, 300]
    out = step(batch, t, 800)
    for i, row in enumerate([rows[2], rows[0], extra]):
        assert mx.array_equal(out[i : i + 1], feed(row, t, 800, 801))
    taken = batch.extract(2)
    assert taken.offset == 301
    assert mx.array_equal(feed(taken, t, 801, 802), feed(extra, t, 801, 802))


def test_right_padded_prompt_equals_rows_alone():
    t = tokens(400)
    batch = new_cache().merge([new_cache(), new_cache()])
    batch.prepare(lengths=[150, 400], right_padding=[250, 0])
    outs = []
    for at in range(0, 400, 100):
        part = slice(None), slice(None), slice(at, at + 100)
        batch.update_and_fetch(*(mx.repeat(x[part], 2, 0) for x in (t.k, t.v)))
        outs.append(batch.attend(mx.repeat(t.q[part], 2, 0), SCALE))
    batch.finalize()
    out = mx.concatenate(outs, 2)
    assert batch.offset.tolist() == [150, 400]
    assert batch.left_padding.tolist() == [250, 0]
    for i, length in enumerate([150, 400]):
        row = new_cache()
        spans = [(0, 100), (100, length)] if i == 0 else [(a, a + 100) for a in range(0, 400, 100)]
        alone = mx.concatenate([feed(row, t, a, b, 100) for a, b in spans], 2)
        assert mx.allclose(out[i : i + 1, :, :length], alone, atol=1e-5)


def test_left_padded_prompt_equals_rows_alone():
    t = tokens(300)
    batch = new_cache().merge([new_cache(), new_cache()])
    batch.prepare(left_padding=[120, 0])
    assert batch.offset.tolist() == [-120, 0]
    k, v, q = (mx.concatenate([mx.roll(x, 120, 2), x], 0) for x in (t.k, t.v, t.q))
    batch.update_and_fetch(k, v)
    out = batch.attend(q, SCALE)
    assert batch.offset.tolist() == [180, 300]
    assert mx.allclose(out[:1, :, 120:], feed(new_cache(), t, 0, 180, 180), atol=1e-5)


def test_batch_trim_and_state_round_trip():
    t = tokens(900)
    batch, _ = batch_of(LENGTHS, t)
    assert batch.trim(2) == 2
    assert batch.offset.tolist() == [1, 138, 698]
    again = TurboBatchKVCache.from_state(copy.deepcopy(batch).state)
    assert mx.array_equal(step(again, t, 800), step(batch, t, 800))


def test_batch_mask_is_the_one_of_mlx_lms_own_batch_cache():
    from mlx_lm.models.cache import KVCache

    t = tokens(200)
    batch, _ = batch_of([3, 140], t)
    plain = []
    for length in (3, 140):
        plain.append(KVCache())
        plain[-1].update_and_fetch(t.k[:, :, :length], t.v[:, :, :length])
    assert mx.array_equal(batch.make_mask(5), KVCache.merge(plain).make_mask(5))


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("kept", [200, 500, 1000])
def test_a_short_rest_of_a_long_sequence_holds_no_more_than_its_price(kept: int, heads: int):
    mx.random.seed(0)
    long = TurboKVCache(K4V3, DIM, PlainBackend())
    x = mx.random.normal((1, heads, 16384, DIM))
    long.update_and_fetch(x, x)
    long.kv.flush(mx.random.normal((1, QUERY_HEADS, 8, DIM)), PlainBackend().encode)
    mx.eval(long.state)
    short = long.fork()
    short.trim(short.offset - kept)
    mx.eval(short.state)
    price = heads * K4V3.sequence_bytes(kept, DIM)
    wanted = [mx.array(np.array(a[..., :kept, :])) for a in long.keys_and_values()]
    assert short.nbytes <= 2 * price + 100_000 < long.nbytes / 2
    for got, original in zip(short.keys_and_values(), wanted, strict=True):
        assert relative(got, original) < 1e-3
    billed = short.nbytes
    del long, x, got, original, wanted
    held = mx.get_active_memory()
    del short
    assert held - mx.get_active_memory() <= billed + 16_384
