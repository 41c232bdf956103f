"""The prefix cache's promises: budget, reasons, checkpoints, eviction. Caches without a model.

Invariant of every timeline: after a call, bytes are within the budget and integrity holds.
"""

from collections import Counter

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import ArraysCache, KVCache

from swiftlm_engine.brain import prefix_index
from swiftlm_engine.brain.prefix_index import Kind
from swiftlm_engine.prefix.cache import (
    HitReason,
    HitSource,
    Match,
    Miss,
    MissReason,
    PrefixCache,
    StoreResult,
)
from swiftlm_engine.prefix.ram import MAX_STATES

DIM = 4
TOKEN_BYTES = 2 * DIM * 4  # keys and values of one head in float32
STATE_BYTES = 100 * 4


pytestmark = pytest.mark.usefixtures("on_the_cpu")


def plain(count: int = 0) -> list[KVCache]:
    cache = KVCache()
    if count:
        rows = mx.broadcast_to(
            mx.arange(count, dtype=mx.float32)[None, None, :, None], (1, 1, count, DIM)
        )
        cache.keys, cache.values, cache.offset = mx.contiguous(rows), mx.contiguous(rows), count
    return [cache]


def hybrid(count: int = 0) -> list[KVCache | ArraysCache]:
    state = ArraysCache(1)
    if count:
        state[0] = mx.full((1, 100), float(count))
    return [*plain(count), state]


def plain_cache(num_tokens: int) -> PrefixCache:
    return PrefixCache(plain, num_tokens * TOKEN_BYTES)


def hybrid_cache(num_tokens: int = 1000, num_states: int = 100) -> PrefixCache:
    return PrefixCache(hybrid, num_tokens * TOKEN_BYTES + num_states * STATE_BYTES)


def match_length(cache: PrefixCache, prompt: list[int]) -> int:
    result = cache.match(prompt)
    if isinstance(result, Match) and isinstance(result.caches[-1], ArraysCache):
        assert result.caches[-1][0].tolist() == [[float(result.length)] * 100]
    if isinstance(result, Match):
        assert result.caches[0].offset == result.length
    return result.length


def test_budget_of_zero_stores_nothing_at_all():
    cache = PrefixCache(plain, 0)
    assert cache.store([1, 2, 3], plain(3)) is StoreResult.DISABLED
    assert cache.match([1, 2, 3]) == Miss(MissReason.DISABLED)
    assert (cache.nbytes, cache.stats().num_entries) == (0, 0)


def test_match_leaves_the_last_token_to_be_run():
    cache = plain_cache(100)
    cache.store([1, 2, 3], plain(3))
    assert match_length(cache, [1, 2, 3]) == 2
    assert match_length(cache, [1, 2, 3, 4]) == 3
    assert cache.match([1]) == Miss(MissReason.TOO_SHORT)


def test_every_result_says_why():
    cache = hybrid_cache()
    assert cache.match([1, 2]).reason is MissReason.EMPTY
    cache.store([1, 2, 3, 4], hybrid(4))
    assert cache.match([9, 9]).reason is MissReason.NO_COMMON_PREFIX
    assert cache.match([1, 2, 9]) == Miss(MissReason.NO_CHECKPOINT, common=2)
    whole = cache.match([1, 2, 3, 4, 5])
    assert (whole.reason, whole.source) == (HitReason.WHOLE, HitSource.RAM)
    cache.store([1, 2], hybrid(2))
    departed = cache.match([1, 2, 3, 9])
    assert (departed.reason, departed.length, departed.common) == (HitReason.CHECKPOINT, 2, 3)
    stats = cache.stats()
    assert stats.misses == {
        "cache empty": 1,
        "no common prefix": 1,
        "no checkpoint before the prompts depart": 1,
    }
    assert (stats.num_hits, stats.cached_tokens, stats.prompt_tokens) == (2, 6, 16)


def test_trimmed_hit_is_named():
    cache = plain_cache(100)
    cache.store([1, 2, 3, 4], plain(4))
    assert cache.match([1, 2, 9]).reason is HitReason.TRIMMED


def test_caches_that_hold_other_than_the_tokens_are_refused(caplog):
    cache = plain_cache(100)
    assert cache.store([1, 2, 3], plain(4)) is StoreResult.MISMATCH
    assert cache.store([], plain()) is StoreResult.MISMATCH
    assert cache.store([1, 2, 3], hybrid(3)) is StoreResult.MISMATCH
    assert cache.nbytes == 0
    assert "layers hold [4]" in caplog.text
    assert cache.stats().refused_stores == {"caches and tokens differ in length": 3}


def test_prefix_larger_than_the_budget_is_refused_and_evicts_nobody():
    cache = plain_cache(10)
    cache.store([1, 2, 3], plain(3))
    assert cache.store(list(range(20, 31)), plain(11)) is StoreResult.TOO_LARGE
    assert match_length(cache, [1, 2, 3]) == 2


def test_two_hundred_distinct_prompts_stay_within_the_budget():
    cache = plain_cache(100)
    for first in range(200):
        cache.store([first, 1, 2, 3, 4, 5, 6], plain(7))
        assert cache.nbytes <= 100 * TOKEN_BYTES
    cache.check_integrity()
    assert cache.stats().num_evicted == 200 - 100 // 7
    assert match_length(cache, [199, 1, 2, 3]) == 3


def test_identical_requests_hold_no_more_memory_than_one():
    cache = plain_cache(5000)
    prompt = list(range(1000))

    def request() -> int:
        result = cache.match(prompt)
        caches = result.caches if isinstance(result, Match) else plain(999)
        caches[0].update_and_fetch(mx.ones((1, 1, 3, DIM)), mx.ones((1, 1, 3, DIM)))
        cache.store([*prompt[: caches[0].offset - 3], 1, 2, 3], caches)
        mx.eval(caches[0].state)
        return mx.get_active_memory()

    after_two = [request() for _ in range(2)][-1]
    assert [request() for _ in range(50)][-1] <= after_two


def test_shrinking_the_budget_evicts_at_once_and_growing_it_takes_effect():
    cache = plain_cache(100)
    for first in range(4):
        cache.store([first] * 20, plain(20))
    cache.resize(45 * TOKEN_BYTES)
    assert cache.nbytes == 40 * TOKEN_BYTES
    assert match_length(cache, [3] * 20) == 19
    cache.resize(200 * TOKEN_BYTES)
    assert cache.store([9] * 150, plain(150)) is StoreResult.STORED
    cache.resize(0)
    assert cache.nbytes == 0
    assert cache.match([9] * 20).reason is MissReason.DISABLED


def test_clear_forgets_and_gives_memory_back():
    before = mx.get_active_memory()
    cache = plain_cache(5000)
    cache.store(list(range(4000)), plain(4000))
    assert mx.get_active_memory() > before
    cache.clear()
    mx.synchronize()  # what was being copied is copied
    assert mx.get_active_memory() <= before
    assert cache.match([0, 1, 2]).reason is MissReason.EMPTY


def test_checkpoints_share_one_trunk():
    cache = hybrid_cache()
    prompt = list(range(60))
    for length in (20, 40, 60):
        cache.store(prompt[:length], hybrid(length))
    assert cache.nbytes == 60 * TOKEN_BYTES + 3 * STATE_BYTES
    assert [match_length(cache, [*prompt[:n], 99]) for n in (60, 59, 40, 39, 20, 19)] == [
        60,
        40,
        40,
        20,
        20,
        0,
    ]


def test_number_of_checkpoints_per_conversation_is_bounded():
    cache = hybrid_cache()
    prompt = list(range(100))
    for length in range(10, 101, 10):
        cache.store(prompt[:length], hybrid(length))
    assert cache.nbytes == 100 * TOKEN_BYTES + MAX_STATES * STATE_BYTES
    assert match_length(cache, [*prompt[:90], 7]) == 90
    assert match_length(cache, [*prompt[:15], 7]) == 0


def test_system_checkpoint_survives_its_conversations():
    cache = hybrid_cache(num_tokens=70, num_states=5)
    system = list(range(30))
    cache.store(system, hybrid(30), Kind.SYSTEM)
    for conversation in range(100, 110):
        prompt = [*system, *[conversation] * 20]
        assert match_length(cache, prompt) == 30
        cache.store(prompt, hybrid(50))
        cache.check_integrity()


def test_one_large_prompt_takes_the_place_of_many_small_ones_without_a_look_at_all_for_each(
    monkeypatch,
):
    looks = Counter()

    def counted(name: str) -> None:
        look = getattr(prefix_index, name)
        monkeypatch.setattr(prefix_index, name, lambda e: (looks.update([name]), look(e))[1])

    cache = hybrid_cache(num_tokens=2000, num_states=200)
    for first in range(200):
        cache.store([first, *range(9)], hybrid(10))
    counted("_is_protected")
    counted("_has_partner")
    assert cache.store(list(range(300, 3800)), hybrid(3500)) is StoreResult.STORED
    cache.check_integrity()
    assert 150 < cache.stats().num_evicted < 200
    assert looks["_is_protected"] < 25 * 400
    assert looks["_has_partner"] < 4 * 400


def test_evicted_conversation_leaves_its_system_prompt_behind():
    cache = plain_cache(100)
    system = list(range(30))
    cache.store(system, plain(30), Kind.SYSTEM)
    cache.store([*system, *[7] * 40], plain(70))
    assert cache.stats().num_entries == 1
    cache.store([9] * 60, plain(60))
    assert cache.nbytes == 90 * TOKEN_BYTES
    assert match_length(cache, [*system, 8]) == 30
    cache.check_integrity()


def test_what_is_left_of_an_evicted_conversation_gives_the_same_keys():
    cache = plain_cache(100)
    cache.store(list(range(30)), plain(30), Kind.SYSTEM)
    cache.store(list(range(70)), plain(70))
    cache.store([9] * 60, plain(60))
    keys, _ = cache.match(list(range(40))).caches[0].keys_and_values()
    assert keys[0, 0, :, 0].tolist() == [float(i) for i in range(30)]


def test_salt_keeps_prompts_with_other_images_apart():
    cache = plain_cache(100)
    cache.store([1, 2, 3], plain(3), salt=b"cat")
    assert cache.match([1, 2, 3], salt=b"dog").length == 0
    assert cache.match([1, 2, 3], salt=b"cat").length == 2


stores = st.tuples(
    st.lists(st.integers(0, 1), min_size=1, max_size=12),
    st.sampled_from(list(Kind)),
    st.sampled_from(["store", "store", "store", "match", "resize"]),
    st.integers(0, 40),
)


@settings(max_examples=150, deadline=None)
@given(is_hybrid=st.booleans(), steps=st.lists(stores, max_size=25))
def test_random_timelines_keep_budget_and_integrity(is_hybrid, steps):
    caches = hybrid if is_hybrid else plain
    cache = PrefixCache(caches, 30 * TOKEN_BYTES)
    budget = 30 * TOKEN_BYTES
    for prompt, kind, verb, number in steps:
        if verb == "store":
            cache.store(prompt, caches(len(prompt)), kind)
        elif verb == "match":
            length = match_length(cache, prompt)
            assert length < len(prompt)
        else:
            budget = number * TOKEN_BYTES
            cache.resize(budget)
        assert cache.nbytes <= budget
        cache.check_integrity()
