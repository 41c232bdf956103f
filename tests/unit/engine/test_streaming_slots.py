"""The slot map stays a bijection, and a failed read leaves nobody in a half-written slot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlm_engine.streaming.slots import PolicyKind, SlotMap, make_policy
from swiftlm_engine.streaming.trace import Trace, replay, seat

CALLS = st.lists(
    st.tuples(st.lists(st.integers(0, 15), min_size=1, unique=True), st.booleans()), max_size=60
)


@pytest.mark.parametrize("kind", PolicyKind)
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
