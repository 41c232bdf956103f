"""Prompts that begin alike, and parts of a prompt: no step copies a whole one."""

from __future__ import annotations

from typing import Any

import pytest
from played_passes import alone

from swiftlm_engine.schedule.scheduler import Limits, Scheduler
from swiftlm_engine.schedule.sequence import Sequence
from swiftlm_engine.schedule.step import StepResult


class Ids(list[int]):
    """Counts the tokens that are copied out of it."""

    copied = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.copied += len(found) if isinstance(at, slice) else 0
        return found

    def __add__(self, other: Any) -> Any:
        raise AssertionError("the whole prompt is copied")

    def __iter__(self) -> Any:
        raise AssertionError("the whole prompt is gone through")


def sequence(name: str, ids: list[int], decoded: int = 0) -> Sequence:
    made = Sequence(name, 0, ids, 100, 0.0)
    made.output_ids = [-1 - i for i in range(decoded + 2)]
    made.num_resumed = decoded
    return made


@pytest.mark.parametrize("decoded", [0, 1, 5])
def test_a_slice_is_that_of_the_prompt_and_of_what_is_prefilled_again(decoded):
    resumed = sequence("r", list(range(6)), decoded)
    whole = resumed.prefill_ids
    for start in range(len(whole) + 1):
        for end in range(start, len(whole) + 2):
            assert resumed.prefill_slice(start, end) == whole[start:end]
    assert resumed.first_input_id == whole[-1]
    assert resumed.num_prefill == len(whole) - 1


def test_beginnings_are_alike_up_to_the_first_other_token():
    one, other = sequence("one", list(range(3000))), sequence("other", list(range(2500)))
    other.prompt_ids[2100] = -1
    assert other.begins_like(one, 2048)
    assert other.begins_like(one, 2100)
    assert not other.begins_like(one, 2101)
    assert not other.begins_like(sequence("third", [7] * 3000), 16)
    assert not other.begins_like(one, 2600)
    assert not one.begins_like(other, 2600)


def test_what_was_decoded_before_a_preemption_is_part_of_a_beginning():
    assert sequence("one", [1, 2, 3, -1], 0).begins_like(sequence("other", [1, 2, 3], 1), 4)


@pytest.mark.parametrize("alike", [True, False])
def test_steps_copy_little_of_the_long_prompts_that_wait(alike):
    now, length = 0.0, 20_000
    scheduler = Scheduler(Limits(parallel=1), lambda: now)
    prompts = [Ids(range(i * (not alike), i * (not alike) + length)) for i in range(5)]
    scheduler.add([sequence(f"s{i}", ids) for i, ids in enumerate(prompts)])
    steps = 0
    while (plan := scheduler.plan()).chunks:
        seconds = tuple(chunk.count / 2000 for chunk in plan.chunks)
        now += sum(seconds)
        scheduler.apply(plan, StepResult(alone(plan.chunks, seconds)))
        steps += 1
    assert steps > 10
    copied = sum(ids.copied for ids in prompts)
    # Each of four is compared once with the first, or for a few first tokens in each step.
    assert copied <= 2 * 4 * (length if alike else steps * 1024)
