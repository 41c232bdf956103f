"""What a group of ranks does not do is refused by name, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from swiftlm_engine.cluster.refusals import group_options
from swiftlm_engine.generation import EngineFault, FaultKind
from swiftlm_engine.options import EngineOptions


def options(**asked):
    return EngineOptions(model="m", folder=Path("m"), **asked)


@pytest.mark.parametrize(
    ("name", "value"),
    [("stream_experts", "on"), ("gpu_layers", 1), ("kv", "turbo"), ("draft", "ngram")],
)
def test_an_option_that_a_group_cannot_serve_is_refused_by_name(name, value):
    with pytest.raises(EngineFault) as refused:
        group_options(options(**{name: value}))
    assert refused.value.kind is FaultKind.UNSUPPORTED
    assert refused.value.param == name


def test_what_only_the_plan_chose_gives_way_in_a_group():
    served = group_options(options(kv="turbo", kv_auto=True, prefix_cache_bytes=1 << 20))
    assert (served.kv, served.kv_auto, served.prefix_cache_bytes) == ("fp16", False, 1 << 20)
