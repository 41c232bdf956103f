"""Prefixes of a group: a follower holds its part of just what the leader's index knows."""

from __future__ import annotations

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import ArraysCache, KVCache

from swiftlm_engine.brain.prefix_index import Kind
from swiftlm_engine.prefix.cache import Match, PrefixCache
from swiftlm_engine.prefix.entries import KeptPrefixes
from swiftlm_engine.ranks import SingleProcess

DIM, OTHER_DIM = 4, 6
TOKEN_BYTES = 2 * DIM * 4


pytestmark = pytest.mark.usefixtures("on_the_cpu")


def caches(ids: list[int], dim: int = DIM) -> list[KVCache | ArraysCache]:
    """Keys that say which token they are of, and a state that sums them up."""
    plain, state = KVCache(), ArraysCache(1)
    if ids:
        rows = mx.broadcast_to(
            mx.array(ids, mx.float32)[None, None, :, None], (1, 1, len(ids), dim)
        )
        plain.keys, plain.values, plain.offset = mx.contiguous(rows), mx.contiguous(rows), len(ids)
        state[0] = mx.array([[float(sum(ids)), len(ids)]])
    return [plain, state]


class Other(SingleProcess):
    """A follower that is told at once."""

    def __init__(self) -> None:
        self.prefixes = KeptPrefixes(lambda: caches([], OTHER_DIM))
        self.offered: list = []
        self.made: list = []
        self.numbers: set[int] = set()

    def keep(self, number, part):
        self.numbers.add(number)
        self.prefixes.keep(number, part, self.offered)

    def shorten(self, number, kept, length, shorter_by):
        self.numbers.add(number)
        self.prefixes.shorten(number, kept, length, shorter_by)

    def forget(self, number):
        self.numbers.remove(number)
        self.prefixes.forget(number)

    def give(self, kept, length):
        self.made = self.prefixes.give(kept, length)


steps = st.tuples(
    st.lists(st.integers(1, 2), min_size=2, max_size=12),
    st.sampled_from(list(Kind)),
    st.sampled_from(["store", "store", "match", "resize", "clear"]),
)


@settings(max_examples=100, deadline=None)
@given(timeline=st.lists(steps, max_size=25))
def test_a_follower_gives_out_its_part_of_what_the_leader_gives_out(timeline):
    other = Other()
    cache = PrefixCache(lambda: caches([]), 40 * TOKEN_BYTES, ranks=other)
    for ids, kind, verb in timeline:
        if verb == "store":
            other.offered = caches(ids, OTHER_DIM)
            cache.store(ids, caches(ids), kind)
        elif verb == "match":
            found = cache.match(ids)
            if isinstance(found, Match):
                expected = caches(ids[: found.length], OTHER_DIM)
                assert_same(other.made, expected)
                assert_same(found.caches, caches(ids[: found.length]))
        elif verb == "resize":
            cache.resize(3 * len(ids) * TOKEN_BYTES)
        else:
            cache.clear()
        assert len(other.numbers) == cache.stats().num_entries


def assert_same(found: list, expected: list) -> None:
    assert found[0].offset == expected[0].offset
    length = expected[0].offset
    assert found[0].keys[..., :length, :].tolist() == expected[0].keys.tolist()
    assert found[1][0].tolist() == expected[1][0].tolist()
