"""Sizes of prefill passes: the cost that is learned from them, and what the scheduler makes of it.

Machines are a cost of a pass by its tokens and the depth they are at, played with a fake clock.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from played_passes import alone

from swiftlm_engine.schedule.pass_cost import PassCost
from swiftlm_engine.schedule.rates import Rate
from swiftlm_engine.schedule.scheduler import Limits, Scheduler
from swiftlm_engine.schedule.sequence import FinishReason, Sequence
from swiftlm_engine.schedule.step import SHORT_TOKENS, Chunk, StepResult

Cost = Callable[[int, int], float]  # seconds of a pass by tokens and depth


def streamed_experts(tokens: int, depth: int) -> float:
    return 1.5 + tokens / 2000  # every expert that is not in memory is read once


def streamed_layers(tokens: int, depth: int) -> float:
    return max(2.0, tokens / 400)  # one is read while the other computes


def slow_cpu(tokens: int, depth: int) -> float:
    return 0.02 + tokens / 50


def gpu(tokens: int, depth: int) -> float:
    return 0.008 + tokens / 13_000


def deep(tokens: int, depth: int) -> float:
    return 0.03 + tokens / 800 * (1 + 3 * (depth + tokens / 2) / 32_000)


class Served:
    """One machine, and prompts on it one after the other."""

    def __init__(self, cost: Cost, *, read: bool = False) -> None:
        """With `read` somebody decodes all the time."""
        self.now, self._cost, self._count = 0.0, cost, 0
        self._cached: dict[str, int] = {}
        self.scheduler = Scheduler(
            Limits(), lambda: self.now, open_sequence=lambda s: self._cached.get(s.request_id, 0)
        )
        if read:
            self.scheduler.add([Sequence("reader", 0, [1, 2], 10**6, 0.0)])
            self.step()

    def prompt(self, tokens: int, cached: int = 0) -> list[tuple[int, float]]:
        """Tokens and seconds of each pass."""
        self._count += 1
        name, first = f"p{self._count}", self._count * 10**6
        self._cached[name] = cached
        self.scheduler.add([Sequence(name, 0, list(range(first, first + tokens)), 1, self.now)])
        passes = []
        while any(s.request_id == name for s in self.scheduler.waiting + self.scheduler.running):
            chunks, seconds = self.step()
            passes += [(c.count, took) for c, took in zip(chunks, seconds, strict=True)]
        return passes

    def step(self) -> tuple[tuple[Chunk, ...], tuple[float, ...]]:
        plan = self.scheduler.plan()
        for row in plan.decode:
            row.output_ids.append(0)
        seconds = tuple(self._cost(chunk.count, chunk.start) for chunk in plan.chunks)
        self.now += 0.02 + sum(seconds)
        ended = tuple((r, FinishReason.LENGTH) for r in plan.decode if r.request_id != "reader")
        self.scheduler.apply(
            plan, StepResult(alone(plan.chunks, seconds), len(plan.decode), 0.02, ended)
        )
        return plan.chunks, seconds


def tokens_per_s(passes: list[tuple[int, float]]) -> float:
    return sum(count for count, _ in passes) / sum(seconds for _, seconds in passes)


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize(("cost", "whole"), [(streamed_experts, 800), (streamed_layers, 400)])
def test_passes_with_a_large_fixed_part_grow_until_it_is_the_smaller_half(cost, whole, read):
    served = Served(cost, read=read)
    served.prompt(4000)
    passes = served.prompt(4000)
    assert tokens_per_s(passes) > 0.6 * whole
    assert max(seconds for _, seconds in passes) <= 2 * 2.05 * cost(0, 0)


def test_many_short_prompts_do_not_shrink_the_passes_of_a_long_one():
    served = Served(streamed_experts)
    served.prompt(4000)
    for _ in range(40):
        served.prompt(30)
    assert tokens_per_s(served.prompt(4000)) > 500


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("tokens", [6, 13, 18, 22])
def test_a_fixed_part_is_found_if_the_first_prompt_was_a_short_one(tokens, read):
    served = Served(streamed_experts, read=read)
    served.prompt(tokens)
    assert len(served.prompt(4000)) <= 9


def test_a_pass_that_was_disturbed_is_not_taken_for_a_fixed_part_for_long():
    passes = 0

    def one_is_disturbed(tokens: int, depth: int) -> float:
        nonlocal passes
        passes += 1
        return (0.03 + tokens / 150) * (10 if passes == 3 else 1)

    served = Served(one_is_disturbed)
    for _ in range(3):
        served.prompt(6000)
    assert max(seconds for _, seconds in served.prompt(2000)) < 0.6


def test_a_reader_waits_for_a_slice_however_deep_the_prompt():
    served = Served(deep, read=True)
    seconds = [took for _, took in served.prompt(16_000)]
    assert max(seconds) < 0.25 * 1.2
    assert min(seconds[8:-1]) > 0.25 * 0.8


def test_a_jump_to_a_deep_place_is_known_after_one_pass():
    served = Served(deep, read=True)
    served.prompt(4000)
    seconds = [took for _, took in served.prompt(33_000, cached=30_000)]
    assert max(seconds) < 1.0
    assert max(seconds[1:-1]) < 0.25 * 1.2  # the last is a short end, taken whole


def test_a_slow_machine_is_known_after_one_pass():
    served = Served(slow_cpu)
    (_, first_s), *others = served.prompt(1000)
    assert first_s < 3
    assert all(count <= SHORT_TOKENS for count, _ in others)


def test_passes_that_compile_kernels_are_outweighed_by_the_first_that_does_not():
    compiled = set()

    def first_ones_compile(tokens: int, depth: int) -> float:
        kernels = tokens <= SHORT_TOKENS
        compile_s = 0.0 if kernels in compiled else 30.0
        compiled.add(kernels)
        return gpu(tokens, depth) + compile_s

    served = Served(first_ones_compile)
    assert len(served.prompt(2000)) <= 4
    assert len(served.prompt(2000)) == 1


def test_a_lone_prompt_takes_two_slices_and_a_small_rest_along():
    served = Served(gpu)
    assert [count for count, _ in served.prompt(2100)] == [128, 1971]
    assert [count for count, _ in served.prompt(4097)] == [2048, 2048]
    slow = Served(lambda tokens, depth: tokens / 800)
    slow.prompt(2000)
    *chunks, with_rest = [count for count, _ in slow.prompt(1271)]
    assert len(chunks) == 2
    assert with_rest > max(chunks)


def test_a_prompt_that_somebody_waits_behind_leaves_its_rest_to_the_next_slice():
    served = Served(lambda tokens, depth: tokens / 800, read=True)
    served.prompt(2000)
    assert {count for count, _ in served.prompt(801)} == {192, 32}


def test_without_a_fixed_part_the_cost_is_the_average_of_the_rates():
    cost, rate = PassCost(2000.0), Rate(2000.0)
    for seconds in (0.2, 0.25, 0.18, 0.5, 0.21):
        cost.observe(160, seconds, usual=160)
        rate.observe(160, seconds)
    cost_rate = 160 / cost.seconds(160)
    assert cost.fixed_s == 0
    # The first measurement is no prior here: it counts as one, and not as all before.
    assert cost_rate == pytest.approx(rate.tokens_per_s, rel=0.1)


def test_sizes_that_hardly_differ_leave_the_fixed_part_as_it_was():
    cost = PassCost(2000.0)
    cost.observe(100, 0.2, usual=100)
    cost.observe(400, 0.5, usual=100)
    fixed = cost.fixed_s
    for tokens in (330, 320, 310, 300, 290, 280) * 4:
        cost.observe(tokens, 0.5, usual=300)
    assert fixed == pytest.approx(0.1)
    assert cost.fixed_s == pytest.approx(fixed, rel=0.05)


def test_full_queue_of_short_prompts_is_told_to_return_after_their_passes():
    served = Served(streamed_experts)
    served.prompt(4000)
    served.prompt(4000)
    waiting = [Sequence(f"w{i}", 0, list(range(200)), 1, served.now) for i in range(10)]
    served.scheduler.add(waiting)
    assert served.scheduler._retry_after_s(waiting[0].client) == pytest.approx(10 * 1.6, rel=0.05)
