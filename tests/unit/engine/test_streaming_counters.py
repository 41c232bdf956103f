"""Counters of streaming are believed only while they agree with each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swiftlm_engine.streaming.counters import LayerCounters, StreamCounters

# 2 tokens of 3 experts; one record read ahead and used, one swept past the slots.
SOUND = LayerCounters(
    record_bytes=10, calls=2, tokens=2, wanted=6, hits=3, misses=3, evictions=1, sweeps=1,
    swept=1, ahead=1, ahead_used=1,
)  # fmt: skip


def counted(layer: LayerCounters, num_bytes: int = 40, failed_bytes: int = 0) -> StreamCounters:
    return StreamCounters({"a": layer}, bytes=num_bytes, failed_bytes=failed_bytes)


def test_counters_that_agree_are_no_problem() -> None:
    assert counted(SOUND).problems() == []
    assert counted(SOUND, 45, failed_bytes=5).problems() == []
    assert StreamCounters({"a": LayerCounters(10)}).problems() == []


@pytest.mark.parametrize(
    ("counters", "said"),
    [
        (counted(replace(SOUND, hits=2)), "a: 2 hits + 3 misses, 6 wanted"),
        (counted(replace(SOUND, wanted=7)), "7 wanted"),
        (counted(SOUND, 30), "30 bytes read, misses say 40"),
        (counted(SOUND, 50), "50 bytes read, misses say 40"),
        (counted(replace(SOUND, ahead=0)), "40 bytes read, misses say 30"),
        (
            counted(LayerCounters(10, calls=1, tokens=1, wanted=2, hits=2), 0),
            "a: 1 tokens from cold slots without a read",
        ),
    ],
)
def test_a_contradiction_is_named_and_degrades(counters: StreamCounters, said: str) -> None:
    assert any(said in problem for problem in counters.problems())
    assert counters.to_json()["degraded"]


def test_a_layer_that_is_never_asked_for_is_a_problem_unless_faults_explain_it() -> None:
    counters = StreamCounters({"a": SOUND, "b": LayerCounters(10)}, bytes=40)
    assert counters.problems() == ["b: never asked for in 2 steps of the layers beside it"]
    counters.read_errors = 2
    assert counters.problems() == []


def test_what_is_shown_is_the_sum_of_layers() -> None:
    both = StreamCounters({"a": SOUND, "b": replace(SOUND, hits=0, evictions=4)}, bytes=80)
    both.read_wall_s = 8e-9
    shown = both.to_json()
    assert (shown["hits"], shown["misses"], shown["evictions"]) == (3, 6, 5)
    assert (shown["sweeps"], shown["sweep_bytes"], shown["gb_per_s"]) == (2, 20, 10.0)
    assert (shown["prefetched"], shown["prefetch_used"], shown["prefetch_wasted"]) == (2, 2, 0)
    assert shown["layers"]["b"] == {"hits": 0, "misses": 3, "evictions": 4}
