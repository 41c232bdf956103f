"""Dense models larger than memory: what fits stays, evenly spread; the rest is read every step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swiftlm_engine.brain.plan.layer_streaming import LayerSize, place_layers


def test_model_that_fits_streams_nothing():
    placed = place_layers([LayerSize(10)] * 4, 40)
    assert (placed.streamed, placed.bytes_per_step, placed.held_bytes) == ((), 0, 40)


def test_without_room_every_layer_passes_through_two_banks():
    placed = place_layers([LayerSize(10)] * 8, 0)
    assert placed.streamed == tuple(range(8))
    assert (placed.held_bytes, placed.bytes_per_step) == (20, 80)


def test_layers_that_fit_stay_and_are_spread_evenly():
    placed = place_layers([LayerSize(10)] * 8, 60)
    assert placed.streamed == (0, 2, 4, 6)
    assert (placed.held_bytes, placed.bytes_per_step) == (60, 40)


def test_layers_of_a_rare_kind_stay():
    placed = place_layers([LayerSize(5, "first"), *[LayerSize(10)] * 6], 0)
    assert 0 not in placed.streamed
    assert placed.held_bytes == 25


def test_disk_bytes_are_what_a_step_reads():
    placed = place_layers([LayerSize(10, disk_bytes=5)] * 4, 0)
    assert placed.bytes_per_step == 20


def test_kinds_that_alternate_need_one_bank_each():
    pair = [LayerSize(10, "a"), LayerSize(4, "b")]
    placed = place_layers(pair * 4, 0)
    assert placed.streamed == tuple(range(8))
    assert placed.held_bytes == 10 + 4
    placed = place_layers([LayerSize(10, "a"), *[LayerSize(4, "b")] * 3] * 4, 0)
    assert placed.held_bytes == 10 + 2 * 4
    placed = place_layers([*pair * 4, pair[0]], 0)  # the last is followed by the first
    assert placed.held_bytes == 2 * 10 + 4


@given(st.lists(st.sampled_from([3, 7, 20]), min_size=1, max_size=24), st.integers(0, 500))
def test_more_room_never_reads_more_and_what_can_fit_does(sizes, room):
    layers = [LayerSize(size) for size in sizes]
    least, placed = place_layers(layers, 0), place_layers(layers, room)
    assert placed.bytes_per_step <= least.bytes_per_step
    assert placed.held_bytes <= max(room, least.held_bytes)
