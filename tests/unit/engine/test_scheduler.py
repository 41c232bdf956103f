"""The scheduler's rules on random timelines, and each rule by itself."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from played_passes import alone

from swiftlm_engine.schedule.kv_budget import Grant, LimitedKV
from swiftlm_engine.schedule.scheduler import Limits, QueueFull, Scheduler
from swiftlm_engine.schedule.sequence import FinishReason, Phase, Sequence
from swiftlm_engine.schedule.step import StepPlan, StepResult


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def sequence(
    name: str, prompt: int, *, now: float = 0.0, max_tokens: int = 4, first_id: int = 0, **more
) -> Sequence:
    """Prompts of one `first_id` begin alike."""
    ids = list(range(first_id, first_id + prompt))
    return Sequence(name, 0, ids, max_tokens, now, **more)


class Machine:
    """Plays the runner: prefills at a fixed rate, decodes one token per row and step. It obeys a
    plan in the engine's order and needs caches for all that it computes."""

    def __init__(self, scheduler: Scheduler, clock: Clock, tokens_per_s: float = 1000.0) -> None:
        self.scheduler, self.clock, self.rate = scheduler, clock, tokens_per_s
        self.finished: dict[str, int] = {}
        self.first_token_at: dict[str, float] = {}
        self.open: set[Sequence] = set()  # these have caches
        self._spared, scheduler._open = scheduler._open, self._open_caches

    def _open_caches(self, row: Sequence) -> int | None:
        assert row not in self.open, "opened twice"
        spared = self._spared(row)
        if spared is not None:
            self.open.add(row)
        return spared

    def step(self) -> StepPlan:
        plan = self.scheduler.plan()
        for gone in plan.gone:
            self.open.discard(gone)
            self._count(gone)
        for preempted in plan.preempted:
            self.open.discard(preempted)
        assert self.open >= {*plan.decode, *(chunk.sequence for chunk in plan.chunks)}
        ended = []
        for row in plan.decode:
            row.output_ids.append(0)
            self.first_token_at.setdefault(row.request_id, self.clock.now)
            if len(row.output_ids) >= row.max_tokens:
                ended.append((row, FinishReason.LENGTH))
        self.clock.now += 0.01
        seconds = tuple(chunk.count / self.rate for chunk in plan.chunks)
        self.clock.now += sum(seconds)
        passes = alone(plan.chunks, seconds)
        self.scheduler.apply(plan, StepResult(passes, len(plan.decode), 0.01, tuple(ended)))
        for row, _ in ended:
            self.open.discard(row)
            self._count(row)
        self.scheduler.check_integrity()
        assert self.open <= set(self.scheduler.running), "caches that nobody holds"
        return plan

    def run(self, max_steps: int = 10_000) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError("the scheduler never came to an end")

    def _count(self, row: Sequence) -> None:
        self.finished[row.request_id] = self.finished.get(row.request_id, 0) + 1


def machine(gate=None, price=lambda prompt, new: 0, **limits):
    clock = Clock()
    scheduler = Scheduler(Limits(**limits), clock, gate, price=price)
    return Machine(scheduler, clock), scheduler, clock


timelines = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "b", "c"]),  # client
        st.integers(1, 300),  # prompt tokens
        st.integers(1, 20),  # max tokens
        st.integers(0, 30),  # arrives before this step
        st.one_of(st.none(), st.integers(0, 60)),  # aborted before this step
        st.one_of(st.none(), st.floats(0.01, 5.0)),  # deadline in seconds
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(timelines, st.integers(1, 5), st.integers(0, 8))
def test_every_sequence_ends_exactly_once_and_nothing_leaks(timeline, parallel, max_queue):
    # Every prompt fits alone, several do not fit together with all they may decode.
    gate = LimitedKV(310)
    m, scheduler, clock = machine(
        gate,
        price=lambda prompt, new: prompt + new,
        parallel=parallel,
        max_queue=max_queue,
        prefill_chunk=64,
        reserve_tokens=3,
    )
    refused = set()
    for step in range(62):
        for i, (client, prompt, max_tokens, arrives, _, deadline) in enumerate(timeline):
            if arrives == step:
                due = None if deadline is None else clock.now + deadline
                new = sequence(
                    f"r{i}", prompt, now=clock.now, max_tokens=max_tokens,
                    deadline_at=due, first_id=i % 3 * 1000, client=client,
                )  # fmt: skip
                try:
                    scheduler.add([new])
                except QueueFull:
                    refused.add(f"r{i}")
        for i, row in enumerate(timeline):
            if row[4] == step:
                scheduler.abort(f"r{i}")
        m.step()
    m.run()
    assert m.finished == {f"r{i}": 1 for i in range(len(timeline)) if f"r{i}" not in refused}
    assert gate.reserved_bytes == 0
    assert not scheduler.waiting
    assert not scheduler.running


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 2000), min_size=1, max_size=12))
def test_decoding_rows_get_a_token_in_every_step(prompts):
    m, scheduler, _ = machine(parallel=16)
    decoding = sequence("decoding", 1, max_tokens=10_000)
    scheduler.add([decoding])
    m.step()
    scheduler.add([sequence(f"p{i}", n) for i, n in enumerate(prompts)])
    for _ in range(50):
        before = len(decoding.output_ids)
        plan = m.step()
        assert len(decoding.output_ids) == before + 1
        assert sum(chunk.count for chunk in plan.chunks) <= 0.25 * 2000 + 16


def test_short_prompts_that_come_together_start_decoding_together():
    m, scheduler, _ = machine(parallel=8)
    scheduler.add([sequence(f"s{i}", 20, max_tokens=10, first_id=i * 100) for i in range(8)])
    assert len(m.step().chunks) == 8
    assert len(m.step().decode) == 8


@pytest.mark.parametrize(("read", "num_chunks"), [(False, 10), (True, 3)])
def test_a_burst_starts_at_once_unless_somebody_reads_an_answer(read, num_chunks):
    m, scheduler, clock = machine(parallel=16)
    m.rate = 200.0  # a quarter of a second is enough for two or three of the prompts below
    scheduler.add([sequence("first", 60, max_tokens=100, first_id=5000)])
    m.step()
    if read:
        m.step()
    scheduler.add([sequence(f"s{i}", 20, now=clock.now, first_id=i * 100) for i in range(1, 16)])
    assert len(scheduler.plan().chunks) == pytest.approx(num_chunks, abs=1)


def test_prompts_with_a_common_beginning_let_the_first_fill_the_cache():
    m, scheduler, _ = machine(parallel=8)
    scheduler.add([sequence(f"s{i}", 200, max_tokens=10) for i in range(3)])
    assert len(m.step().chunks) == 1


def test_a_slow_machine_gives_prompts_the_time_of_two_decode_steps():
    clock = Clock()
    scheduler = Scheduler(Limits(), clock)
    scheduler.add([sequence("decodes", 2, max_tokens=100)])
    for _ in range(4):
        plan = scheduler.plan()
        seconds = tuple(chunk.count / 50 for chunk in plan.chunks)
        scheduler.apply(plan, StepResult(alone(plan.chunks, seconds), len(plan.decode), 1.0))
    scheduler.add([sequence("long", 1000)])
    [chunk] = scheduler.plan().chunks
    assert 64 <= chunk.count <= 2 * 50


def test_short_prompt_overtakes_a_long_one_between_chunks():
    m, scheduler, clock = machine(parallel=4)
    scheduler.add([sequence("long", 30_000)])
    m.step()
    m.step()
    arrived = clock.now
    scheduler.add([sequence("short", 20, now=arrived)])
    while "short" not in m.first_token_at:
        m.step()
    assert m.first_token_at["short"] - arrived < 0.6
    assert "long" not in m.first_token_at


def test_long_prompt_does_not_starve_under_a_stream_of_short_ones():
    m, scheduler, clock = machine(parallel=4, max_queue=1000)
    scheduler.add([sequence("long", 4000)])
    for i in range(400):
        scheduler.add([sequence(f"s{i}", 200, now=clock.now, max_tokens=1)])
        m.step()
        if "long" in m.first_token_at:
            break
    # Alone it takes 4 s; while 200 tokens arrive per 0.21 s nothing could be left for it without
    # ageing, which gives it its turn after 4000 / 0.5 tokens' worth of waiting.
    assert m.first_token_at["long"] < 25


def test_full_queue_refuses_with_an_estimate():
    _, scheduler, _ = machine(parallel=1, max_queue=2)
    scheduler.add([sequence(f"r{i}", 500) for i in range(3)])
    with pytest.raises(QueueFull) as refused:
        scheduler.add([sequence("late", 10)])
    assert refused.value.retry_after_s >= 1.0


def test_choices_of_one_request_are_queued_all_or_none():
    _, scheduler, _ = machine(parallel=1, max_queue=2)
    with pytest.raises(QueueFull):
        scheduler.add([sequence("many", 5) for _ in range(4)])
    assert not scheduler.waiting


def test_memory_that_cannot_be_had_is_waited_for():
    gate = LimitedKV(100)
    m, scheduler, _ = machine(gate, price=lambda prompt, new: 80, parallel=4)
    scheduler.add([sequence("a", 10), sequence("b", 10)])
    m.step()
    assert [s.request_id for s in scheduler.running] == ["a"]
    m.run()
    assert m.finished == {"a": 1, "b": 1}


def test_prefix_hit_of_the_whole_prompt_goes_straight_to_decode():
    clock = Clock()
    scheduler = Scheduler(Limits(), clock, open_sequence=lambda s: s.num_prefill)
    hit = sequence("hit", 500)
    scheduler.add([hit])
    plan = scheduler.plan()
    assert plan.chunks == ()
    assert plan.decode == (hit,)
    assert hit.cached == 499


def test_chunk_stops_at_the_next_boundary():
    _, scheduler, _ = machine()
    scheduler.add([sequence("r", 300, boundaries=(100, 200))])
    plan = scheduler.plan()
    [chunk] = plan.chunks
    assert (chunk.start, chunk.count) == (0, 100)


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.PREFILLING, Phase.DECODING])
def test_abort_ends_a_sequence_in_any_phase(phase):
    m, scheduler, _ = machine(parallel=1)
    blocker = sequence("blocker", 10, max_tokens=50)
    size = {Phase.WAITING: 20, Phase.PREFILLING: 5000, Phase.DECODING: 1}[phase]
    target = sequence("target", size, max_tokens=50)
    scheduler.add([blocker, target] if phase is Phase.WAITING else [target])
    m.step()
    assert target.phase is phase
    assert scheduler.abort("target")
    plan = m.step()
    assert plan.gone == (target,)
    assert target.finish_reason is FinishReason.ABORT
    assert not scheduler.abort("target")


def test_youngest_gives_its_memory_back_when_an_older_one_outgrows_its_reservation():
    gate = LimitedKV(60)
    m, scheduler, _ = machine(gate, price=lambda prompt, new: prompt + new, reserve_tokens=5)
    old = sequence("old", 10, max_tokens=40)
    young = sequence("young", 10, max_tokens=40)
    scheduler.add([old])
    m.step()
    scheduler.add([young])
    while young.phase is not Phase.WAITING or not young.output_ids:
        m.step()
    assert young.num_resumed == len(young.output_ids) > 0
    m.run()
    assert m.finished == {"old": 1, "young": 1}
    assert len(old.output_ids) == len(young.output_ids) == 40
    assert gate.reserved_bytes == 0


def test_sequence_that_is_preempted_is_not_opened_again_before_its_caches_are_taken():
    # One that grows by 100 bytes at a time, and another of 50 that is in the middle of its prompt.
    gate = LimitedKV(250)
    m, scheduler, _ = machine(
        gate,
        price=lambda prompt, new: 50 if prompt == 900 else 100 * math.ceil(new / 50),
        reserve_tokens=100,
        prefill_chunk=16,
    )
    grows, other = sequence("grows", 10, max_tokens=900), sequence("other", 900, first_id=5000)
    m.rate = 50.0
    scheduler.add([grows])
    while len(grows.output_ids) < 98:
        m.step()
    scheduler.add([other])
    m.step()
    plans = [m.step() for _ in range(2)]
    assert [plan.preempted for plan in plans if plan.gone == (grows,)] == [(other,)]
    m.run()
    assert m.finished == {"grows": 1, "other": 1}


def test_sequence_that_outgrows_all_memory_alone_ends_for_want_of_memory():
    gate = LimitedKV(30)
    m, scheduler, _ = machine(gate, price=lambda prompt, new: prompt + new, reserve_tokens=5)
    only = sequence("only", 10, max_tokens=100)
    scheduler.add([only])
    m.run()
    assert only.finish_reason is FinishReason.MEMORY
    assert gate.reserved_bytes == 0


@pytest.mark.parametrize(("budget", "reserve"), [(175, 100), (1892, 1024), (40, 7), (23, 1024)])
def test_all_of_the_budget_is_used_before_a_sequence_ends_for_want_of_memory(budget, reserve):
    m, scheduler, _ = machine(
        LimitedKV(budget), price=lambda prompt, new: prompt + new, reserve_tokens=reserve
    )
    only = sequence("only", 10, max_tokens=5000)
    scheduler.add([only])
    m.run()
    assert only.finish_reason is FinishReason.MEMORY
    assert budget - 10 - 3 <= len(only.output_ids) <= budget - 10


def test_nobody_is_preempted_while_there_is_memory_for_the_next_tokens():
    gate = LimitedKV(250)
    m, scheduler, _ = machine(gate, price=lambda prompt, new: prompt + new, reserve_tokens=100)
    scheduler.add([long := sequence("long", 10, max_tokens=200)])
    while len(long.output_ids) < 80:
        m.step()
    scheduler.add([sequence("short", 10, max_tokens=60, first_id=100)])
    while scheduler.has_work:
        assert m.step().preempted == ()  # there were 70 left when the long one asked for 100
    assert m.finished == {"long": 1, "short": 1}


def test_sequence_that_cannot_come_back_ends_and_the_next_one_has_its_turn():
    # What it decoded is more than the budget by now, as after a smaller budget.
    m, scheduler, _ = machine(LimitedKV(100), price=lambda prompt, new: prompt + new)
    large, small = sequence("large", 50, max_tokens=900), sequence("small", 10)
    large.output_ids = [1] * 60
    large.num_resumed = 60
    scheduler.add([large, small])
    m.run(max_steps=50)
    assert (large.finish_reason, small.finish_reason) == (FinishReason.MEMORY, FinishReason.LENGTH)


@pytest.mark.parametrize("interval_s", [0.5, 1.0, 2.0])
def test_large_prompt_is_not_passed_by_smaller_ones_for_ever(interval_s):
    gate = LimitedKV(4 * 8192)
    m, scheduler, clock = machine(
        gate, price=lambda prompt, new: prompt + new, parallel=16, max_queue=1000
    )
    m.rate = 10_000.0
    large = sequence("large", 7000, max_tokens=200, first_id=10**6)
    num_small, next_at = 0, 0.0
    while "large" not in m.first_token_at and clock.now < 200:
        if clock.now >= next_at:
            first = num_small * 5000
            scheduler.add(
                [sequence(f"s{num_small}", 3000, now=clock.now, max_tokens=800, first_id=first)]
            )
            num_small, next_at = num_small + 1, next_at + interval_s
            if num_small == 30:
                large.arrived_at = clock.now
                scheduler.add([large])
        m.step()
    assert m.first_token_at["large"] - large.arrived_at < 40


def test_prompt_whose_prefix_is_still_being_read_holds_nobody_up():
    clock = Clock()
    answers = {"reads": [None, None, 500], "other": [0]}
    scheduler = Scheduler(Limits(), clock, open_sequence=lambda s: answers[s.request_id].pop(0))
    m = Machine(scheduler, clock)
    reads, other = sequence("reads", 600), sequence("other", 700)
    scheduler.add([reads, other])
    assert [chunk.sequence for chunk in m.step().chunks] == [other]
    assert reads.phase is Phase.PREFILLING
    m.run()
    assert reads.cached == 500
    assert m.finished == {"reads": 1, "other": 1}


# -- clients: rule 9


def asks(client: str, count: int, prompt: int = 100, **more) -> list[Sequence]:
    return [
        sequence(f"{client}{i}", prompt, client=client, first_id=1000 * i, **more)
        for i in range(count)
    ]


def steps_until_first_token(m: Machine, name: str) -> int:
    for steps in range(1, 2000):
        m.step()
        if name in m.first_token_at:
            return steps
    raise AssertionError(f"{name} never got a token")


@pytest.mark.parametrize("parallel", [2, 8])
@pytest.mark.parametrize("prompt", [10, 100])
def test_a_client_with_a_hundred_requests_costs_another_at_most_a_few_steps(parallel, prompt):
    m, scheduler, clock = machine(parallel=parallel, max_queue=100)
    for one in asks("a", 100, prompt, max_tokens=100):
        scheduler.add([one])
    for _ in range(30):
        m.step()
    scheduler.add([sequence("b", prompt, now=clock.now, client="b")])
    assert steps_until_first_token(m, "b") <= 4


def test_long_prompts_of_one_client_do_not_go_before_one_of_another():
    m, scheduler, clock = machine(parallel=8)
    m.rate = 100.0
    for one in asks("a", 8, 400, max_tokens=500):
        scheduler.add([one])
    for _ in range(8):
        m.step()  # 2 s of the first of them
    scheduler.add([sequence("b", 400, now=clock.now, client="b")])
    began = clock.now
    steps_until_first_token(m, "b")
    assert clock.now - began < 3 * 4.0  # its own 4 s, and about as much of the other client


def test_a_full_line_has_a_place_for_another_client_and_tells_each_its_own_wait():
    _, scheduler, _ = machine(parallel=1, max_queue=8)
    for one in asks("a", 9, 5000):
        scheduler.add([one])
    with pytest.raises(QueueFull) as first:
        scheduler.add(asks("a", 1))
    for one in asks("b", 4, 10):
        scheduler.add([one])
    with pytest.raises(QueueFull) as second:
        scheduler.add(asks("b", 1))
    assert second.value.retry_after_s < first.value.retry_after_s <= 60


def test_the_line_is_bounded_whatever_clients_call_themselves():
    _, scheduler, _ = machine(parallel=1, max_queue=63)
    for i in range(1000):
        for one in asks(f"client {i} ", 64, 10):
            try:
                scheduler.add([one])
            except QueueFull:
                break
    assert len(scheduler.waiting) < 64 * (1 + math.log(64))


def test_memory_that_one_client_holds_is_not_filled_again_before_another_that_waits_for_it():
    gate = LimitedKV(100)
    m, scheduler, clock = machine(gate, price=lambda prompt, new: prompt, parallel=8, max_queue=100)
    for one in asks("a", 40, 25, max_tokens=20):
        scheduler.add([one])
    for _ in range(10):
        m.step()
    scheduler.add([sequence("b", 60, now=clock.now, client="b")])
    steps_until_first_token(m, "b")
    assert len(m.finished) <= 8
    m.run()
    assert gate.reserved_bytes == 0


def test_a_newcomer_is_not_the_one_that_gives_its_memory_back():
    gate = LimitedKV(120)
    m, scheduler, clock = machine(
        gate, price=lambda prompt, new: prompt + new, parallel=4, reserve_tokens=5
    )
    scheduler.add(asks("a", 3, 25, max_tokens=60))
    m.step()
    scheduler.add([sequence("b", 10, now=clock.now, max_tokens=10, client="b")])
    while "b" not in m.finished:
        plan = m.step()
        assert all(one.client == "a" for one in plan.preempted)
    m.run()


def test_who_must_leave_a_place_to_others_keeps_no_memory_from_them():
    gate = LimitedKV(1000)
    m, scheduler, clock = machine(gate, price=lambda prompt, new: prompt + new, parallel=3)
    slow = sequence("slow", 10, max_tokens=400, client="a")
    other = sequence("other", 10, max_tokens=300, client="a", first_id=1000)
    scheduler.add([slow])
    scheduler.add([other])
    m.step()
    large = sequence("large", 500, max_tokens=4, client="a", first_id=2000, now=clock.now)
    scheduler.add([large])
    while other.finish_reason is None:
        m.step()
    assert large.phase is Phase.WAITING
    assert large.refused_at is not None
    clock.now = max(clock.now, large.refused_at + 60)
    new = [
        sequence(name, 10, client=name, first_id=3000 + 50 * i, now=clock.now)
        for i, name in enumerate("bc")
    ]
    for one in new:
        scheduler.add([one])
    for _ in range(10):
        m.step()
    assert slow.finish_reason is None
    assert {"b", "c"} <= m.first_token_at.keys()


def test_a_lone_sequence_waits_for_kv_that_is_held_beside_it():
    gate = LimitedKV(300)
    m, scheduler, _ = machine(gate, price=lambda prompt, new: prompt + new, reserve_tokens=50)
    grows = sequence("grows", 10, max_tokens=250)
    scheduler.add([grows])
    m.step()
    assert scheduler.hold_beside(200) is Grant.HELD
    assert scheduler.hold_beside(200) is Grant.LATER
    for _ in range(120):
        m.step()
    assert grows.phase is Phase.WAITING  # and not ended as if there were no more memory
    scheduler.add([fresh := sequence("fresh", 200, first_id=1000)])
    for _ in range(10):
        m.step()
    assert fresh.finish_reason is None
    scheduler.release_beside(200)
    m.run()
    assert grows.finish_reason is FinishReason.LENGTH
    assert fresh.finish_reason is FinishReason.LENGTH
    assert gate.reserved_bytes == 0
    assert scheduler.hold_beside(301) is Grant.NEVER


class SharingWorld:
    """Sequences of 100 bytes, of which the first 60 are one prefix that they may share."""

    def __init__(self, budget: int) -> None:
        self.shares, self.clock = True, Clock()
        self.gate = LimitedKV(budget, self.counted_twice)
        self.scheduler = Scheduler(
            Limits(parallel=8),
            self.clock,
            self.gate,
            price=lambda prompt, new: 100,
            held_already=lambda waiting: 60 if self.shares and self.scheduler.running else 0,
        )
        self.machine = Machine(self.scheduler, self.clock)

    def counted_twice(self) -> int:
        return 60 * max(0, len(self.scheduler.running) - 1) if self.shares else 0

    def add(self, count: int) -> None:
        names = [f"r{i}" for i in range(count)]
        for i, name in enumerate(names):
            self.scheduler.add([sequence(name, 64, max_tokens=20, first_id=1000 * i)])


def test_what_running_sequences_hold_together_is_reserved_once() -> None:
    world = SharingWorld(budget=230)
    world.add(5)
    most = 0
    while world.scheduler.has_work:
        world.machine.step()
        running = len(world.scheduler.running)
        most = max(most, running)
        assert 100 * running - world.counted_twice() <= 230
    assert most == 4  # 100 + 3 * 40; apart from each other it would be two
    assert world.gate.reserved_bytes == 0


def test_the_youngest_waits_again_when_a_prefix_is_no_longer_shared() -> None:
    world = SharingWorld(budget=230)
    world.add(4)
    for _ in range(5):
        world.machine.step()
    assert len(world.scheduler.running) == 4
    world.shares = False
    world.machine.step()
    assert len(world.scheduler.running) == 2
    world.machine.run()
    assert world.machine.finished == {f"r{i}": 1 for i in range(4)}
