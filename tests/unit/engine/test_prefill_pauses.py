"""Where prefill pauses so that a window or a state can be kept."""

from __future__ import annotations

import itertools

import pytest

from swiftlm_engine.schedule.checkpoints import checkpoints, is_kept_on_the_way


@pytest.mark.parametrize(
    ("boundaries", "num_prefill", "pauses"),
    [
        ((), 900, ()),
        ((900,), 900, (900,)),
        ((700, 900), 900, (700, 900)),
        ((888, 900), 900, (888, 900)),  # a long document and a short question to it
        (
            (4, 888, 900),
            900,
            (888, 900),
        ),  # 4: before the system prompt's text
        ((40, 900), 900, (900,)),  # a system prompt that costs less than a pass
        ((700, 890, 900), 900, (700, 900)),  # turns that close together are worth no pause
        ((100, 300, 500, 700, 900, 1200), 1100, (100, 500, 700, 900)),
    ],
)
def test_prefill_pauses_after_the_system_prompt_and_at_the_latest_turns(
    boundaries, num_prefill, pauses
):
    assert checkpoints(boundaries, num_prefill) == pauses


@pytest.mark.parametrize(
    ("num_prefill", "kept"),
    [
        (100, [75, 90]),  # a half is less than is worth keeping
        (1000, [500, 750, 875]),
        (100_000, [50_000, 75_000, 87_500]),
        (60, []),
    ],
)
def test_a_plain_prompt_keeps_few_ends_of_chunks_and_more_of_them_near_its_own(num_prefill, kept):
    chunks = itertools.pairwise(i * num_prefill // 40 for i in range(40))
    assert [end for start, end in chunks if is_kept_on_the_way(start, end, num_prefill)] == kept
