"""Layers over hosts of unequal memory: contiguous, never empty, within budgets where it can be."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftlm_engine.brain.plan.group import split_layers

layer_sizes = st.lists(st.integers(1, 50), min_size=1, max_size=9)


def test_equal_hosts_share_equally() -> None:
    assert split_layers([7] * 12, [100, 100, 100]) == [range(4), range(4, 8), range(8, 12)]


def test_a_host_with_three_times_the_memory_holds_three_times_the_layers() -> None:
    assert split_layers([10] * 32, [300, 100]) == [range(24), range(24, 32)]


def test_a_host_too_small_for_its_proportion_is_filled_but_not_overfilled() -> None:
    # 12 bytes of room: proportion would give it one layer of 10, rounding up would give two.
    ranges = split_layers([10] * 5, [40, 12])
    assert ranges == [range(4), range(4, 5)]


@given(layer_sizes, st.lists(st.integers(1, 200), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_every_layer_is_held_once_and_budgets_hold_where_they_can(
    sizes: list[int], budgets: list[int]
) -> None:
    if len(budgets) > len(sizes):
        with pytest.raises(ValueError, match="cannot be split"):
            split_layers(sizes, budgets)
        return
    ranges = split_layers(sizes, budgets)
    assert [layer for part in ranges for layer in part] == list(range(len(sizes)))
    assert all(ranges)
    assert len(ranges) == len(budgets)

    def over(cuts: tuple[int, ...]) -> int:
        ends = pairwise((0, *cuts, len(sizes)))
        return sum(
            max(0, sum(sizes[a:b]) - room) for (a, b), room in zip(ends, budgets, strict=True)
        )

    least = min(map(over, combinations(range(1, len(sizes)), len(budgets) - 1)))
    assert over(tuple(part.stop for part in ranges[:-1])) == least


def test_a_host_without_room_is_an_error() -> None:
    with pytest.raises(ValueError, match="no room"):
        split_layers([1, 1], [5, 0])


def test_hosts_get_layers_whose_files_they_have() -> None:
    all_files, last = None, frozenset(range(6, 8))
    assert split_layers([10] * 8, [100, 100], [all_files, last]) == [range(6), range(6, 8)]
    with pytest.raises(ValueError, match="files on the hosts do not match"):
        split_layers([10] * 8, [100, 100], [all_files, frozenset({1, 2})])
