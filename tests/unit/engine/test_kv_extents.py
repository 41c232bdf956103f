"""Tables over extents, without tensors: no token is lost, freed twice, or seen by a stranger.

Random histories of sequences that grow, fork, take back, are gathered and end. The buffers are
lists of numbers; what each sequence wrote is known, and must be what its table reads.
"""

from __future__ import annotations

import gc
import random
from weakref import WeakSet

import pytest

from swiftlm_engine.brain.kv_extents import MAX_EXTENTS, ExtentTable, SharedBytes


class Memory:
    """Makes buffers, and knows which of them are still there."""

    def __init__(self) -> None:
        self.alive: WeakSet[Tokens] = WeakSet()

    def __call__(self) -> Tokens:
        made = Tokens()
        self.alive.add(made)
        return made


class Tokens:
    def __init__(self) -> None:
        self.held: list[int] = []


class Sequence:
    """A table and the tokens it should read."""

    def __init__(self, table: ExtentTable[Tokens], tokens: list[int]) -> None:
        self.table, self.tokens = table, tokens

    def grow(self, new: list[int], min_shared: int) -> None:
        self._copy_in(self.table.grow(len(new), min_shared), len(new))
        last = self.table.holds[-1]
        start = last.length - len(new)
        last.extent.buffer.held[start:] = new  # as the cache does: nobody is behind
        self.tokens = self.tokens + new

    def gather(self) -> None:
        self._copy_in(self.table.gather(), 0)

    def _copy_in(self, moved, count: int) -> None:
        if moved:
            copied = [t for hold in moved for t in hold.extent.buffer.held[: hold.length]]
            self.table.holds[-1].extent.buffer.held = copied
            assert len(copied) + count == self.table.holds[-1].length

    def read(self) -> list[int]:
        return [t for hold in self.table.holds for t in hold.extent.buffer.held[: hold.length]]


def play(seed: int, steps: int = 40) -> None:
    dice, memory = random.Random(seed), Memory()
    sequences = [Sequence(ExtentTable(memory), [])]
    fresh = iter(range(1, 1 << 30))
    for _ in range(steps):
        one = dice.choice(sequences)
        match dice.randrange(6):
            case 0 | 1:
                count = dice.choice((1, 1, 3, 20))
                one.grow([next(fresh) for _ in range(count)], dice.choice((0, 8)))
            case 2:
                length = dice.randint(0, len(one.tokens))
                sequences.append(Sequence(one.table.fork(length), one.tokens[:length]))
            case 3:
                count = dice.randint(0, min(5, len(one.tokens)))
                one.table.trim(count)
                one.tokens = one.tokens[: len(one.tokens) - count]
            case 4:
                one.gather()
            case 5 if len(sequences) > 1:
                sequences.remove(one)
        del one
        for each in sequences:
            assert each.read() == each.tokens
            assert each.table.length == len(each.tokens)
            assert len(each.table.holds) <= MAX_EXTENTS
        held = {id(hold.extent.buffer) for each in sequences for hold in each.table.holds}
        assert {id(buffer) for buffer in memory.alive} == held  # freed with the last hold
    each = None
    sequences.clear()
    assert not memory.alive


def test_random_histories_lose_nothing_and_leak_nothing() -> None:
    gc.disable()  # reference counts alone free every buffer
    try:
        for seed in range(200):
            play(seed)
    finally:
        gc.enable()


@pytest.mark.slow
def test_ten_thousand_random_histories() -> None:
    for seed in range(10_000):
        play(seed)


def test_a_fork_that_goes_on_at_the_end_writes_in_place_once() -> None:
    memory = Memory()
    first = Sequence(ExtentTable(memory), [])
    first.grow(list(range(100)), 8)
    second, third = (Sequence(first.table.fork(100), list(range(100))) for _ in range(2))
    second.grow([7], 8)
    third.grow([9], 8)
    assert len(second.table.holds) == 1
    assert len(third.table.holds) == 2
    assert (second.read()[-1], third.read()[-1], first.read()) == (7, 9, list(range(100)))


def test_a_short_beginning_is_copied_and_not_shared() -> None:
    first = Sequence(ExtentTable(Memory()), [])
    first.grow(list(range(100)), 8)
    second = Sequence(first.table.fork(5), list(range(5)))
    second.grow([9], 8)
    assert len(second.table.holds) == 1
    assert second.table.holds[0].extent is not first.table.holds[0].extent


def test_tokens_taken_back_stay_those_of_whoever_holds_them_too() -> None:
    first = Sequence(ExtentTable(Memory()), [])
    first.grow([1, 2, 3], 0)
    kept = Sequence(first.table.fork(3), [1, 2, 3])
    first.table.trim(2)
    first.tokens = [1]
    first.grow([8], 0)
    assert (first.read(), kept.read()) == ([1, 8], [1, 2, 3])


def test_extents_know_how_much_of_them_is_needed() -> None:
    first = ExtentTable(Memory())
    first.grow(50, 0)
    extent = first.holds[0].extent
    second = first.fork(20)
    assert extent.needed == 50
    del first
    assert extent.needed == 20
    del second
    assert extent.needed == 0


def test_common_bytes_count_once_whatever_comes_and_goes() -> None:
    dice, shared = random.Random(1), SharedBytes()
    claims: list[tuple[str, int]] = []
    for _ in range(2000):
        if claims and dice.random() < 0.45:
            shared.remove(*claims.pop(dice.randrange(len(claims))))
        else:
            claims.append((dice.choice("abc"), dice.randrange(100)))
            shared.add(*claims[-1])
        by_key = {key: [n for k, n in claims if k == key] for key in {k for k, _ in claims}}
        assert shared.surplus == sum(sum(ns) - max(ns) for ns in by_key.values())
        assert len(shared) == len(by_key)
