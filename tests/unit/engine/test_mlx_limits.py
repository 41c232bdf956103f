"""MLX's own limits follow the plan, and the wired one is left alone where that is asked for."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from swiftlm_engine.cluster.group import ProcessLimits
from swiftlm_engine.cluster.limits import set_limits
from swiftlm_engine.load.device import Device
from swiftlm_engine.load.options import EngineOptions
from swiftlm_engine.server import wire
from swiftlm_proto import messages as m


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in ("set_memory_limit", "set_cache_limit", "set_wired_limit"):
        monkeypatch.setattr(mx, name, lambda size, name=name: found.update({name: size}))
    return found


def limits(options: EngineOptions) -> ProcessLimits:
    return ProcessLimits(
        options.memory_limit_bytes, options.buffer_cache_bytes, options.wired_bytes
    )


def options(**sizes: int) -> EngineOptions:
    return EngineOptions(model="m", folder=Path(), **sizes)


def test_every_limit_of_the_plan_is_set_once_at_load(calls: dict[str, int]) -> None:
    sizes = {"memory_limit_bytes": 3, "buffer_cache_bytes": 2, "wired_bytes": 1}
    set_limits(limits(options(**sizes)), Device.METAL)
    assert calls == {"set_memory_limit": 3, "set_cache_limit": 2, "set_wired_limit": 1}


def test_the_wired_limit_is_never_touched_when_wiring_is_off(calls: dict[str, int]) -> None:
    set_limits(limits(options(buffer_cache_bytes=2)), Device.METAL)
    assert calls == {"set_cache_limit": 2}


@pytest.mark.parametrize(("recommended", "wired"), [(1000, 1000), (10_000, 4000), (0, 4000)])
def test_wiring_stays_within_what_metal_recommends_now(
    calls: dict[str, int], monkeypatch: pytest.MonkeyPatch, recommended: int, wired: int
) -> None:
    monkeypatch.setattr(
        mx, "device_info", lambda: {"max_recommended_working_set_size": recommended}
    )
    set_limits(limits(options(wired_bytes=4000)), Device.METAL)
    assert calls == {"set_wired_limit": wired}


def test_a_pool_that_is_off_keeps_nothing_and_one_that_is_not_stated_is_left_to_mlx(
    calls: dict[str, int],
) -> None:
    set_limits(limits(options()), Device.METAL)
    assert calls == {}
    off = m.LoadRequest.parse(bytes(m.LoadRequest(buffer_cache_bytes=0)))
    set_limits(limits(wire.options(off)), Device.METAL)
    assert calls == {"set_cache_limit": 0}
    assert wire.options(m.LoadRequest.parse(b"")).buffer_cache_bytes is None
