"""Random timelines of a residency keep its promises (the list is in `residency_machine`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from residency_machine import NAMES, Event, played

_NAME = st.sampled_from([NAMES[0], *NAMES])  # they must meet
_EVENT = st.one_of(
    st.tuples(st.just("use"), _NAME),
    st.tuples(st.just("hold"), _NAME),
    st.tuples(st.just("release"), st.integers(0, 5)),
    st.tuples(
        st.just("load"), _NAME, st.booleans(), st.sampled_from([0, 0, 2048, 4096]), st.booleans()
    ),
    st.tuples(st.just("load"), _NAME, st.booleans(), st.just(0), st.just(False)),
    st.tuples(st.just("unload"), _NAME, st.booleans()),
    st.tuples(st.just("cancel"), st.integers(0, 8)),
    st.tuples(st.just("crash"), _NAME),
    st.tuples(st.just("gate"), st.booleans()),
    st.tuples(st.just("slow_stop"), _NAME, st.sampled_from([True, True, False])),
    st.tuples(st.just("late_memory"), st.booleans()),
    st.tuples(st.just("time"), st.sampled_from([0.1, 1.0, 3.0, 6.0, 15.0, 70.0])),
    st.tuples(st.just("evict")),
    st.tuples(st.just("turns"), st.sampled_from([1, 2, 5, 20])),
    st.tuples(st.just("turns"), st.just(20)),
    st.tuples(st.just("time"), st.sampled_from([1.0, 6.0])),
    st.tuples(st.just("pin"), _NAME, st.booleans()),
    st.tuples(
        st.just("configure"),
        st.sampled_from([0, 1, 2]),
        st.sampled_from([0.0, 10.0, 600.0]),
        st.booleans(),
    ),
    st.tuples(st.just("fail_next")),
    st.tuples(st.just("wake")),
)
_QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@settings(max_examples=200, derandomize=True, database=None, phases=[Phase.generate], **_QUIET)
@given(st.lists(_EVENT, min_size=2, max_size=20))
def test_every_short_timeline_keeps_the_promises(events: list[Event]) -> None:
    assert asyncio.run(played(events)) == []


@pytest.mark.slow
@settings(max_examples=5000, database=None, **_QUIET)
@given(st.lists(_EVENT, min_size=2, max_size=50))
def test_every_long_timeline_keeps_the_promises(events: list[Event]) -> None:
    assert asyncio.run(played(events)) == []
