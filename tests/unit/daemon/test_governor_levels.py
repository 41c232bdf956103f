"""The governor on timelines of fake readings: it settles, it never latches, it forgives spikes.

Invariants of every timeline: nothing is shrunk while readings are calm; a request that fits is
admitted, if need be after a reclaim; a level is left only after quiet, one step at a time.
"""

from itertools import cycle, islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlmd.memory import Action, Governor, Level, Pressure, Reading
from swiftlmd.memory.governor import Answer, Decision

GB = 10**9
BUDGET = 10 * GB
SOFT = (Action.CLEAR_POOL, Action.SHRINK_PREFIX, Action.PACK_WEIGHTS, Action.SHRINK_SLOTS)


def reading(used: float, available: float = 20, pressure: Pressure = Pressure.NORMAL) -> Reading:
    """`used` and `available` in GB, of a budget of 10 and a machine of 32."""
    return Reading(32 * GB, int(available * GB), int(used * GB), pressure)


def run(governor: Governor, readings: list[Reading], start: float = 0.0) -> list[Decision]:
    """One reading per second."""
    return [governor.observe(r, start + i) for i, r in enumerate(readings)]


def levels(decisions: list[Decision]) -> list[Level]:
    return [decision.level for decision in decisions]


def test_calm_readings_do_nothing_and_say_nothing() -> None:
    decisions = run(Governor(BUDGET), [reading(5)] * 10)
    assert all(d == Decision(Level.CALM) for d in decisions)


def test_one_bad_reading_is_a_spike_and_moves_nothing() -> None:
    timeline = [reading(5), reading(9.9), reading(5), reading(9.9), reading(5)]
    decisions = run(Governor(BUDGET), timeline)
    assert levels(decisions) == [Level.CALM] * 5
    assert not any(d.actions for d in decisions)


def test_soft_pressure_goes_one_step_down_the_list_per_reading() -> None:
    decisions = run(Governor(BUDGET), [reading(8.7)] * 6)
    assert levels(decisions) == [Level.CALM] + [Level.SOFT] * 5
    assert [d.actions for d in decisions] == [
        (),
        (Action.CLEAR_POOL,),
        (Action.SHRINK_PREFIX,),
        (Action.PACK_WEIGHTS,),
        (Action.SHRINK_SLOTS,),
        (Action.CLEAR_POOL,),  # it has filled up again; slots go once a round
    ]


def test_soft_level_stops_shrinking_once_the_first_step_helped() -> None:
    timeline = [reading(8.7), reading(8.7), reading(8.2), reading(8.2)]
    decisions = run(Governor(BUDGET), timeline)
    assert decisions[1].actions == (Action.CLEAR_POOL,)
    assert decisions[2].actions == decisions[3].actions == ()
    assert decisions[3].level is Level.SOFT  # still above the lower mark


def test_hard_level_shrinks_everything_and_then_evicts_idle_models() -> None:
    decisions = run(Governor(BUDGET), [reading(9.6)] * 3)
    assert levels(decisions) == [Level.CALM, Level.HARD, Level.HARD]
    assert decisions[1].actions == SOFT
    assert decisions[2].actions == (*SOFT, Action.EVICT_IDLE)


def test_levels_are_left_one_at_a_time_each_after_its_quiet() -> None:
    governor = Governor(BUDGET)
    run(governor, [reading(9.6)] * 2)
    down = levels(run(governor, [reading(5)] * 12, start=2))
    assert down == [Level.HARD] * 5 + [Level.SOFT] * 5 + [Level.CALM] * 2


def test_use_between_the_marks_keeps_the_level_it_came_from() -> None:
    governor = Governor(BUDGET)
    assert levels(run(governor, [reading(8.2)] * 20)) == [Level.CALM] * 20
    run(governor, [reading(8.7)] * 2, start=20)
    assert levels(run(governor, [reading(8.2)] * 20, start=22)) == [Level.SOFT] * 20


def test_flapping_pressure_settles_on_one_level() -> None:
    flapping = [reading(5, pressure=p) for p in islice(
        cycle([Pressure.WARN, Pressure.WARN, Pressure.NORMAL]), 60
    )]  # fmt: skip
    seen = levels(run(Governor(BUDGET), flapping))
    changes = sum(a is not b for a, b in pairwise(seen))
    assert changes == 1
    assert seen[-1] is Level.SOFT


def test_pressure_that_alternates_every_second_never_leaves_calm() -> None:
    alternating = [
        reading(5, pressure=p) for p in islice(cycle([Pressure.CRITICAL, Pressure.NORMAL]), 60)
    ]
    assert set(levels(run(Governor(BUDGET), alternating))) == {Level.CALM}


def test_critical_pressure_of_the_machine_counts_whatever_we_use() -> None:
    critical = reading(1, pressure=Pressure.CRITICAL)
    decisions = run(Governor(BUDGET), [critical] * 2)
    assert decisions[-1].level is Level.HARD
    assert decisions[-1].actions == SOFT


def test_request_that_fits_is_admitted_while_pressure_flaps() -> None:
    governor = Governor(BUDGET)
    for i, pressure in enumerate(islice(cycle([Pressure.CRITICAL, Pressure.NORMAL]), 30)):
        now = reading(5, pressure=pressure)
        governor.observe(now, float(i))
        assert governor.judge(2 * GB, now).answer is Answer.ADMIT


def test_request_that_fits_is_admitted_while_reclaimable_memory_jumps() -> None:
    governor = Governor(BUDGET)
    for i, available in enumerate(islice(cycle([20.0, 0.5, 18.0, 22.0, 1.0]), 30)):
        now = reading(5, available)
        governor.observe(now, float(i))
        if i >= 2:
            assert governor.judge(2 * GB, now).answer is Answer.ADMIT, i


def test_memory_that_is_really_gone_is_seen_within_a_few_readings() -> None:
    governor = Governor(BUDGET)
    run(governor, [reading(5, 20)] * 5)
    run(governor, [reading(5, 1)] * 3, start=5)
    verdict = governor.judge(2 * GB, reading(5, 1))
    assert verdict.answer is Answer.RECLAIM
    assert "the machine has 1.0 GB left" in verdict.reason


def test_footprint_at_96_percent_asks_for_a_reclaim_though_mlx_holds_little() -> None:
    """MLX says 10 %: the rest is its freed buffers. They go back, and the request is admitted."""
    governor = Governor(BUDGET)
    full = reading(9.6)
    run(governor, [full] * 3)
    first = governor.judge(2 * GB, full)
    assert first.answer is Answer.RECLAIM
    assert first.actions[0] is Action.CLEAR_POOL
    assert governor.judge(2 * GB, reading(1.0), reclaimed=True).answer is Answer.ADMIT


def test_refusal_follows_only_a_reclaim_and_gives_the_numbers() -> None:
    governor = Governor(BUDGET)
    verdict = governor.judge(2 * GB, reading(9), reclaimed=True)
    assert verdict.answer is Answer.REFUSE
    assert verdict.reason == "needs 2.0 GB beside 9.0 GB in use, the budget is 10.0 GB"


def test_refusals_end_with_their_cause() -> None:
    governor = Governor(BUDGET)
    critical = reading(5, pressure=Pressure.CRITICAL)
    run(governor, [critical] * 10)
    refused = governor.judge(GB, critical, reclaimed=True)
    assert refused.answer is Answer.REFUSE
    assert refused.reason == "the machine is critically short of memory"
    # the very next good reading admits, whatever level the governor is still on
    assert governor.level is Level.HARD
    assert governor.judge(GB, reading(5)).answer is Answer.ADMIT


def test_nothing_starts_at_the_hard_limit_until_reclaiming_has_helped() -> None:
    governor = Governor(10 * GB)
    run(governor, [reading(9.7)] * 4)
    assert governor.level is Level.HARD
    assert governor.judge(1, reading(9.7)).answer is Answer.RECLAIM
    refused = governor.judge(1, reading(9.7), reclaimed=True)
    assert (refused.answer, refused.never) == (Answer.REFUSE, False)
    assert "hard limit" in refused.reason
    assert governor.judge(1, reading(6), reclaimed=True).answer is Answer.ADMIT


def test_what_exceeds_the_whole_budget_never_fits_and_costs_nobody_his_cache() -> None:
    verdict = Governor(10 * GB).judge(11 * GB, reading(1))
    assert (verdict.answer, verdict.never, verdict.actions) == (Answer.REFUSE, True, ())


def test_larger_budget_is_seen_at_once() -> None:
    governor = Governor(BUDGET)
    assert governor.judge(2 * GB, reading(9)).answer is Answer.RECLAIM
    governor.set_budget(20 * GB)
    assert governor.judge(2 * GB, reading(9)).answer is Answer.ADMIT


_READINGS = st.builds(
    reading,
    st.floats(0, 12),
    st.floats(0, 32),
    st.sampled_from(Pressure),
)


@given(noise=st.lists(_READINGS, max_size=40))
def test_any_past_is_forgotten_after_enough_quiet(noise: list[Reading]) -> None:
    governor = Governor(BUDGET)
    run(governor, noise)
    quiet = run(governor, [reading(5)] * 15, start=len(noise))
    assert quiet[-1] == Decision(Level.CALM)
    assert governor.judge(4 * GB, reading(5)).answer is Answer.ADMIT


@given(timeline=st.lists(_READINGS, min_size=1, max_size=40))
def test_nothing_is_shrunk_on_a_good_reading_and_idle_models_go_last(
    timeline: list[Reading],
) -> None:
    governor = Governor(BUDGET)
    for i, now in enumerate(timeline):
        decision = governor.observe(now, float(i))
        good = now.footprint_bytes < 0.85 * BUDGET and now.pressure is Pressure.NORMAL
        if good or decision.level is Level.CALM:
            assert decision.actions == ()
        if Action.EVICT_IDLE in decision.actions:
            assert decision.actions[: len(SOFT)] == SOFT


@pytest.mark.parametrize("share", [0.84, 0.86, 0.94, 0.96])
def test_marks_lie_at_85_and_95_percent(share: float) -> None:
    decisions = run(Governor(BUDGET), [reading(10 * share)] * 2)
    wanted = Level.HARD if share > 0.95 else Level.SOFT if share > 0.85 else Level.CALM
    assert decisions[-1].level is wanted
