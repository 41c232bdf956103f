"""The slot map stays a bijection, and a failed read leaves nobody in a half-written slot."""

from __future__ import annotations

import errno
import itertools
import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftlm_engine.streaming.counters import LayerCounters, StreamCounters
from swiftlm_engine.streaming.policy_choice import (
    MAX_CALLS,
    SLICE_S,
    PolicyChoice,
    PolicyLearner,
    choose_policy,
    kept_policy,
)
from swiftlm_engine.streaming.slots import PolicyKind, SlotMap, make_policy
from swiftlm_engine.streaming.streamer import Streamer
from swiftlm_engine.streaming.trace import Call, Trace, replay, seat

CALLS = st.lists(
    st.tuples(st.lists(st.integers(0, 15), min_size=1, unique=True), st.booleans()), max_size=60
)


@pytest.mark.parametrize("kind", PolicyKind)
@settings(deadline=None)  # a busy machine is no failure
@given(num_slots=st.integers(1, 12), calls=CALLS)
def test_slot_map_is_a_bijection_under_any_calls_and_faults(kind, num_slots, calls):
    slots = SlotMap(num_slots, make_policy(kind, num_slots))
    for experts, fails in calls:
        seated, swept = seat(slots, tuple(experts))
        assert sorted(seated + swept) == sorted(experts)
        plan = slots.plan(seated)
        if fails:
            slots.abandon(plan)
            assert not any(i.expert in slots or i.evicted in slots for i in plan.installs)
        else:
            slots.commit(plan)
            assert all(expert in slots for expert in seated)
        assert len({slots.slot(e) for e in range(16) if e in slots}) == len(slots)
        slots.check_integrity()


@pytest.mark.parametrize("kind", PolicyKind)
def test_replay_counts_every_expert_as_hit_or_miss(kind, tmp_path):
    trace = Trace()
    for number in range(40):
        trace.add("layer", (number % 3, 3 + number % 5))
    trace.save(tmp_path / "trace")
    loaded = Trace.load(tmp_path / "trace")
    assert loaded.calls == trace.calls
    everything = replay(loaded, 8, kind)
    assert (everything.hits, everything.misses) == (72, 8)
    assert replay(loaded, 3, kind).hits < 72


def test_policy_is_chosen_by_replay_kept_and_only_for_a_gain(tmp_path):
    loop = Trace()
    for number in range(400):  # two favourites, and a scan that LRU falls for
        loop.add("layer", (2 + number % 7, 9 + number % 5) if number % 3 else (0, 1))
    choice = choose_policy(loop, 4)
    assert choice.policy is not PolicyKind.LRU
    assert choice.hit_rates[choice.policy] > choice.hit_rates["lru"]
    choice.save(tmp_path / "records" / "policy.json")
    assert PolicyChoice.load(tmp_path / "records" / "policy.json") == choice
    (tmp_path / "broken.json").write_text("{")
    assert PolicyChoice.load(tmp_path / "broken.json") is None
    same = Trace([Call("layer", (1, 2))] * 50)
    assert choose_policy(same, 3).policy is PolicyKind.LRU


def test_trace_keeps_the_watched_layers_and_ends():
    trace = Trace(layers=frozenset({"a"}), max_calls=3)
    for number in range(5):
        trace.add("a", (number,))
        trace.add("b", (number,))
    assert trace.full
    assert trace.calls == [Call("a", (0,)), Call("a", (1,)), Call("a", (2,))]


@pytest.mark.parametrize("kind", PolicyKind)
@settings(deadline=None)
@given(calls=CALLS, sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_slot_map_stays_a_bijection_when_slots_become_fewer_or_more(kind, calls, sizes):
    slots = SlotMap(6, make_policy(kind, 6))
    for number, (experts, _) in enumerate(calls):
        slots.commit(slots.plan(seat(slots, tuple(experts))[0]))
        before = {e: slots.slot(e) for e in range(16) if e in slots}
        moves = slots.resize(sizes[number % len(sizes)])
        after = {e: slots.slot(e) for e in range(16) if e in slots}
        assert {(m.old, m.new) for m in moves} == {(before[e], after[e]) for e in after}
        slots.check_integrity()


def test_a_record_of_odd_values_counts_as_none(tmp_path):
    path = tmp_path / "policy.json"
    for slots in ('"many"', "null", "[1]", "1e999"):
        path.write_text(f'{{"policy": "lfu", "slots": {slots}, "hit_rates": {{}}}}')
        assert kept_policy(path, 8) is PolicyKind.LRU


class FullLearner:
    """A learner whose trace is full, and which has not decided yet."""

    def __init__(self, path, clock=time.perf_counter):
        self.streamer = Streamer(None, StreamCounters({"a": LayerCounters(1)}))  # type: ignore[arg-type]
        self.streamer.slots = 8
        self.learner = PolicyLearner(self.streamer, path, clock)
        draw = random.Random(0)
        calls = [tuple(draw.sample(range(16), 2)) for _ in range(200)]
        for number in range(MAX_CALLS):
            self.streamer.trace.add("a", calls[number % 200])
        assert self.streamer.trace.full


def test_learning_goes_in_slices_and_never_stops_the_engine_for_long(tmp_path):
    ticks = itertools.count()
    full = FullLearner(tmp_path / "policy.json", lambda: next(ticks) * SLICE_S / 50)
    turns = 0
    while full.learner.idle():
        turns += 1
    assert turns >= 3 * MAX_CALLS // 50
    assert PolicyChoice.load(tmp_path / "policy.json") is not None
    assert not full.learner.idle()  # once


@pytest.mark.parametrize("where", ["file", "full"])
def test_a_policy_that_cannot_be_written_costs_nothing_but_a_warning(
    where, tmp_path, monkeypatch, caplog
):
    folder = tmp_path / "slot-policies"
    if where == "file":
        folder.write_text("no folder")
    else:
        monkeypatch.setattr(Path, "replace", full_disk)
    full = FullLearner(folder / "policy.json", lambda: 0.0)
    assert full.learner.idle() is False
    assert "will be learnt again" in caplog.text
    assert where == "file" or list(folder.iterdir()) == []


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("kind", PolicyKind)
def test_a_layer_with_other_slots_evicts_as_one_that_always_had_them(kind):
    slots = SlotMap(40, make_policy(kind, 40))
    slots.resize(4)
    same = SlotMap(4, make_policy(kind, 4))
    for number in range(200):
        for held in (slots, same):
            held.commit(held.plan((number % 7, 7 + number % 3)))
        assert {e for e in range(10) if e in slots} == {e for e in range(10) if e in same}
