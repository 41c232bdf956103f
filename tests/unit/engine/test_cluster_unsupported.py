"""What a group of ranks does not do is refused by name, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from swiftlm_engine.cluster.unsupported import group_options
from swiftlm_engine.load.options import EngineOptions
from swiftlm_engine.messages import EngineFault, FaultKind


def options(**asked):
    return EngineOptions(model="m", folder=Path("m"), **asked)


@pytest.mark.parametrize(
    ("name", "value"),
    [("stream_experts", "on"), ("gpu_layers", 1), ("draft", "ngram")],
)
def test_an_option_that_a_group_cannot_serve_is_refused_by_name(name, value):
    with pytest.raises(EngineFault) as refused:
        group_options(options(**{name: value}))
    assert refused.value.kind is FaultKind.UNSUPPORTED
    assert refused.value.param == name


def test_a_group_keeps_prefixes_in_memory_only():
    served = group_options(options(prefix_cache_dir=Path("p"), prefix_cache_bytes=1 << 20))
    assert (served.prefix_cache_dir, served.prefix_cache_bytes) == (None, 1 << 20)
