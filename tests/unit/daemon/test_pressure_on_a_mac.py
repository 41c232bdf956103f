"""What a Mac's warnings cost a loaded model: one step, and slots that stay worth having."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from fakes import FakeClock, FakeLoadedEngine, FakeMemory, stored_model

from swiftlm_engine.brain.plan.streaming import _HITS_LOW, _hits
from swiftlm_proto import messages as m
from swiftlmd.config.settings import Settings
from swiftlmd.memory import Action, Answer, Governor, Level, Pressure, Reading
from swiftlmd.residency.crashes import CrashRecord
from swiftlmd.residency.reclaim import EngineReclaimer
from swiftlmd.residency.resident import Resident

GB = 10**9
RAM, BUDGET = 16 * GB, 10 * GB
EXPERTS, PER_TOKEN = 128, 8
SLOT_BYTES = 80_000_000  # of one slot in every layer


@dataclass
class Streamed:
    """An engine that streams: its slots and prefix cache make up its footprint."""

    slots: int = 64
    prefix_bytes: int = GB
    fixed_bytes: int = 2 * GB
    cuts: int = 0

    @property
    def footprint(self) -> int:
        return self.fixed_bytes + self.prefix_bytes + self.slots * SLOT_BYTES

    async def cache(self, request: m.CacheRequest) -> m.CacheReply:
        if request.resize_bytes is not None:
            self.prefix_bytes = request.resize_bytes
        if request.expert_slots is not None:
            self.cuts += request.expert_slots < self.slots
            self.slots = request.expert_slots
        return m.CacheReply(stats=m.PrefixStats(budget_bytes=self.prefix_bytes))

    @property
    def counters(self) -> m.StreamCounters:
        return m.StreamCounters(slots=self.slots, experts_per_token=PER_TOKEN, num_experts=EXPERTS)


@dataclass
class Afternoon:
    """A governor over one streamed model, a reading per second."""

    engine: Streamed = field(default_factory=Streamed)
    now: float = 0.0
    actions: list[Action] = field(default_factory=list)
    governor: Governor = field(init=False)

    def __post_init__(self) -> None:
        clock = FakeClock()
        resident = Resident(stored_model("m"), Settings(), CrashRecord(clock), 60.0)
        loaded = FakeLoadedEngine("m", 10, FakeMemory(), GB)
        loaded.client = SimpleNamespace(cache=self.engine.cache)  # type: ignore[assignment]
        resident.became_ready(loaded, clock.now())  # type: ignore[arg-type]
        self.loaded = loaded
        granted = self.engine.footprint
        self.governor = Governor(BUDGET, granted=lambda: granted)
        self.reclaimer = EngineReclaimer(SimpleNamespace(residents=[resident]))  # type: ignore[arg-type]

    async def second(self, pressure: Pressure, swapped_out: int = 0) -> None:
        self.loaded.stats = m.EngineStats(stream=self.engine.counters)
        reading = Reading(
            RAM, 4 * GB, self.engine.footprint, pressure, swapped_out_bytes=swapped_out
        )
        for action in self.governor.observe(reading, self.now).actions:
            self.actions.append(action)
            await self.reclaimer.reclaim(action)
        if self.now % 60 == 59 and self.governor.may_restore(self.now):
            await self.reclaimer.restore()
        self.now += 1.0


async def test_ten_minutes_of_warning_cost_one_step_and_no_slot() -> None:
    world = Afternoon()
    for _ in range(600):
        await world.second(Pressure.WARN)
    assert world.actions == [Action.CLEAR_POOL]
    assert world.engine.slots == 64
    assert world.engine.prefix_bytes == GB


async def test_swapping_under_a_warning_takes_a_step_each_half_minute_down_to_half_the_knee() -> (
    None
):
    world = Afternoon()
    for second in range(600):
        before = len(world.actions)
        await world.second(Pressure.WARN, swapped_out=second * 10**6)
        if second > 2 and len(world.actions) > before:
            assert second % 30 == 1
    assert world.actions[:4] == [
        Action.CLEAR_POOL,
        Action.SHRINK_PREFIX,
        Action.PACK_WEIGHTS,
        Action.TRIM_SLOTS,
    ]
    assert world.engine.slots == EXPERTS // 4
    assert world.engine.cuts < 5


async def test_what_was_shrunk_grows_again_under_a_warning_that_changes_nothing() -> None:
    world = Afternoon()
    for second in range(200):
        await world.second(Pressure.WARN, swapped_out=second * 10**6)
    assert world.engine.slots < 64
    for _ in range(400):
        await world.second(Pressure.WARN, swapped_out=200 * 10**6)
    assert world.governor.level is Level.SOFT
    assert (world.engine.slots, world.engine.prefix_bytes) == (64, GB)


async def test_our_own_growth_under_a_warning_takes_further_steps() -> None:
    world = Afternoon()
    for second in range(200):
        world.engine.fixed_bytes = 2 * GB + second * 2 * 10**6
        await world.second(Pressure.WARN)
    assert world.actions[:2] == [Action.CLEAR_POOL, Action.SHRINK_PREFIX]


async def test_a_model_that_uses_all_it_was_granted_is_left_alone() -> None:
    world = Afternoon(Streamed(slots=100))  # 11 of 10 GB: layers on the CPU lie beyond the budget
    for _ in range(300):
        await world.second(Pressure.NORMAL)
    assert world.actions == []
    assert world.governor.level is Level.CALM
    world.engine.fixed_bytes += int(world.engine.footprint * 0.1)
    for _ in range(2):
        await world.second(Pressure.NORMAL)
    assert world.governor.level is Level.HARD


def test_under_normal_pressure_the_free_pages_refuse_no_request() -> None:
    governor = Governor(BUDGET)
    green = Reading(RAM, 10**8, GB, available_is_advice=True)
    assert governor.judge(2 * GB, green).answer is Answer.ADMIT
    yellow = Reading(RAM, 10**8, GB, Pressure.WARN)
    for second in range(6):
        governor.observe(yellow, second)
    assert governor.judge(2 * GB, yellow).answer is Answer.RECLAIM


@dataclass
class Others:
    """What other programs hold of the memory, second by second."""

    seconds: int
    held: Callable[[int], float]  # GB


def _compile_job(second: int) -> float:
    return 3.0 + (4.5 if 1800 <= second < 2700 or 5400 <= second < 6000 else 0.0)


def _browser(second: int) -> float:
    return 3.0 + min(3.5, second / 3000) - (2.0 if second > 11_000 else 0.0)


def _sleep(second: int) -> float:
    return 2.5 if not 4000 <= second < 4300 else 8.0  # everything wakes at once


AFTERNOONS = {
    "compile job": Others(7200, _compile_job),
    "browser": Others(14_400, _browser),
    "sleep": Others(7200, _sleep),
}


def kernel(others: Others, footprint: Callable[[], int]) -> Iterator[tuple[Pressure, int]]:
    """As xnu: yellow when the compressor holds much, swap-outs once it is full."""
    swapped = 0
    for second in range(others.seconds):
        want = others.held(second) * GB + footprint() - 13.5 * GB  # the rest is the system's
        swapped += max(0, int(want * 0.001)) if want > 2.5 * GB else 0
        pressure = Pressure.CRITICAL if want > 6 * GB else Pressure.WARN
        yield (pressure if want > 0 else Pressure.NORMAL), swapped


def worth(slots: int, want: float) -> float:
    """Speed by hits, and what thrashing leaves of it."""
    return _hits(_HITS_LOW, slots / EXPERTS) * (1.0 if want <= 4.0 * GB else 0.3)


@pytest.mark.parametrize("name", AFTERNOONS)
async def test_an_afternoon_is_within_a_fifth_of_the_best_fixed_choice(name: str) -> None:
    others, world = AFTERNOONS[name], Afternoon()
    got = prefix = 0.0
    trace = kernel(others, lambda: world.engine.footprint)
    for second, (pressure, swapped) in enumerate(trace):
        await world.second(pressure, swapped)
        want = others.held(second) * GB + world.engine.footprint - 13.5 * GB
        got += worth(world.engine.slots, want)
        prefix += world.engine.prefix_bytes
    best = 0.0
    for slots in range(PER_TOKEN, 65, 4):
        fixed = Streamed(slots=slots).footprint - 13.5 * GB
        best = max(
            best, sum(worth(slots, others.held(s) * GB + fixed) for s in range(others.seconds))
        )
    assert got >= 0.8 * best
    assert prefix >= 0.8 * GB * others.seconds
    assert world.engine.cuts <= others.seconds / 1800
