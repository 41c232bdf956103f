"""The prefix index against a slow twin, and the order in which entries leave."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftlm_engine.brain.prefix_index import CachedPart, Entry, Kind, PrefixIndex

TRUNK_ONLY = frozenset({CachedPart.TRUNK})
BOTH = frozenset({CachedPart.TRUNK, CachedPart.STATE})


def common(a: list[int], b: list[int]) -> int:
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return count


def slow_find(index: PrefixIndex, prompt: list[int], limit: int, salt: bytes) -> int:
    """The longest length at which every needed part has an entry that serves it."""
    for length in range(min(limit, len(prompt)), 0, -1):
        serving = {
            entry.part
            for entry in index
            if entry.salt == salt
            and entry.floor <= length <= entry.length
            and common(entry.token_ids, prompt) >= length
        }
        if serving >= index.needs:
            return length
    return 0


short_prompts = st.lists(st.integers(0, 2), min_size=1, max_size=9)
operations = st.tuples(
    st.sampled_from(["insert", "insert", "insert", "remove", "find", "victim"]),
    st.sampled_from(list(CachedPart)),
    short_prompts,
    st.integers(0, 9),
    st.sampled_from([b"", b"image"]),
    st.sampled_from(list(Kind)),
)


@settings(max_examples=300, deadline=None)
@given(
    needs=st.sampled_from([TRUNK_ONLY, BOTH, frozenset({CachedPart.STATE})]),
    ops=st.lists(operations),
)
def test_random_operations_keep_the_invariants_and_find_the_longest_prefix(needs, ops):
    index = PrefixIndex(needs)
    for verb, part, tokens, number, salt, kind in ops:
        if verb == "insert":
            floor = 0 if part is CachedPart.TRUNK else min(number, len(tokens))
            entry, gone = index.insert(part, tokens, number, floor=floor, salt=salt, kind=kind)
            assert entry.node is not None
            assert all(old.node is None for old in gone)
        elif verb == "remove" and len(index):
            index.remove(sorted(index, key=lambda e: e.last_used)[number % len(index)])
        elif verb == "victim" and (victims := index.victims(number)):
            index.remove(victims[0])
        found = index.find(tokens, number, salt)
        assert found.length == slow_find(index, tokens, number, salt)
        index.check_integrity()


@settings(deadline=None)
@given(ops=st.lists(st.tuples(st.sampled_from(list(CachedPart)), short_prompts), max_size=8))
def test_stranded_entries_are_those_whose_removal_changes_no_answer(ops):
    index = PrefixIndex(BOTH)
    for part, tokens in ops:
        index.insert(part, tokens, 1, floor=len(tokens) if part is CachedPart.STATE else 0)
    prompts = [tokens for _, tokens in ops]
    before = [index.find(p, 99).length for p in prompts]
    for entry in index.stranded():
        index.remove(entry)
    assert [index.find(p, 99).length for p in prompts] == before
    assert not index.stranded()


def test_longer_trunk_supersedes_the_shorter_ones_on_its_path():
    index = PrefixIndex(TRUNK_ONLY)
    first, _ = index.insert(CachedPart.TRUNK, [1, 2], 10)
    other, _ = index.insert(CachedPart.TRUNK, [1, 9], 10)
    longer, gone = index.insert(CachedPart.TRUNK, [1, 2, 3], 15)
    assert gone == [first]
    assert set(index) == {longer, other}
    assert index.nbytes == 25


def test_shorter_trunk_is_not_stored_beside_a_longer_one():
    index = PrefixIndex(TRUNK_ONLY)
    longer, _ = index.insert(CachedPart.TRUNK, [1, 2, 3], 15)
    entry, gone = index.insert(CachedPart.TRUNK, [1, 2], 10)
    assert entry is longer
    assert (gone, index.nbytes) == ([], 15)


def test_states_that_serve_one_length_stay_beside_each_other():
    index = PrefixIndex(BOTH)
    index.insert(CachedPart.TRUNK, [1, 2, 3, 4], 40)
    for length in (2, 4):
        index.insert(CachedPart.STATE, [1, 2, 3, 4][:length], 5, floor=length)
    assert index.find([1, 2, 3, 4, 5], 5).length == 4
    assert index.find([1, 2, 3, 7], 4).length == 2
    assert index.find([1, 7], 2).length == 0
    assert index.find([1, 7], 2).common == 1


def test_trunk_and_state_of_different_conversations_serve_together():
    index = PrefixIndex(BOTH)
    index.insert(CachedPart.TRUNK, [1, 2, 3, 4], 40)
    index.insert(CachedPart.STATE, [1, 2], 5, floor=2)
    found = index.find([1, 2, 9, 9], 4)
    assert found.length == 2
    assert found.trunk.length == 4
    assert found.state.length == 2


def test_salt_separates_prompts_with_equal_tokens():
    index = PrefixIndex(TRUNK_ONLY)
    index.insert(CachedPart.TRUNK, [1, 2, 3], 1, salt=b"one image")
    assert index.find([1, 2, 3], 3, b"another image").length == 0
    assert index.find([1, 2, 3], 3, b"one image").length == 3


def evict_all(index: PrefixIndex, max_protected_bytes: int) -> list[Entry]:
    gone = []
    while victims := index.victims(max_protected_bytes):
        index.remove(victims[0])
        gone.append(victims[0])
    return gone


def test_least_recently_used_entry_leaves_first():
    index = PrefixIndex(TRUNK_ONLY)
    a, b, c = (index.insert(CachedPart.TRUNK, [n], 1)[0] for n in (1, 2, 3))
    index.touch(a)
    assert evict_all(index, 0) == [b, c, a]


def test_system_prompts_outlive_conversations_within_their_share():
    index = PrefixIndex(TRUNK_ONLY)
    old_system, _ = index.insert(CachedPart.TRUNK, [1], 5, kind=Kind.SYSTEM)
    system, _ = index.insert(CachedPart.TRUNK, [2], 5, kind=Kind.SYSTEM)
    turn, _ = index.insert(CachedPart.TRUNK, [3], 5)
    assert evict_all(index, 5) == [old_system, turn, system]


def test_state_that_two_conversations_branch_off_outlives_theirs():
    index = PrefixIndex(BOTH)
    shared, _ = index.insert(CachedPart.STATE, [1, 2], 1, floor=2)
    a, _ = index.insert(CachedPart.STATE, [1, 2, 3], 1, floor=3)
    b, _ = index.insert(CachedPart.STATE, [1, 2, 4], 1, floor=3)
    assert index.victims(1) == [a]
    index.remove(a)
    assert index.victims(1) == [shared]  # one conversation left: no longer shared
    assert b in set(index)


def test_locked_entry_is_not_evicted():
    index = PrefixIndex(TRUNK_ONLY)
    entry, _ = index.insert(CachedPart.TRUNK, [1], 1)
    index.lock(entry)
    assert index.victims(0) == []
    index.unlock(entry)
    assert index.victims(0) == [entry]
    with pytest.raises(ValueError, match="not locked"):
        index.unlock(entry)


def test_number_of_checkpoints_on_a_path_is_bounded_and_the_longest_stay():
    index = PrefixIndex(BOTH)
    prompt = list(range(10))
    entries = [index.insert(CachedPart.STATE, prompt[:n], 1, floor=n)[0] for n in range(1, 11)]
    assert index.surplus_states(entries[-1], 4) == entries[5::-1]


def test_system_prefix_is_remembered_by_the_entry_that_supersedes_it():
    index = PrefixIndex(TRUNK_ONLY)
    index.insert(CachedPart.TRUNK, [1, 2], 1, kind=Kind.SYSTEM)
    longer, _ = index.insert(CachedPart.TRUNK, [1, 2, 3], 1)
    assert longer.system_length == 2
    index.insert(CachedPart.TRUNK, [1], 1, kind=Kind.SYSTEM)
    assert longer.system_length == 2
