"""Calibration through the whole service: measured on request, used by the next plan, cleared."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from live_daemon import LiveDaemon, daemon, home
from tiny_models import make_model

from swiftlm_proto import messages as m


@pytest.fixture
async def live() -> AsyncIterator[LiveDaemon]:
    async with home() as place:
        make_model("llama", place.paths.models / "tiny")
        async with daemon(place, real=True) as found:
            yield found


async def planned(live: LiveDaemon) -> dict[str, Any]:
    reply = await live.admin.plan(m.PlanModelRequest(model="tiny"))
    return json.loads(reply.plan)


@pytest.mark.timeout(240)
async def test_a_record_is_made_used_by_the_plan_changed_and_cleared(live: LiveDaemon) -> None:
    assert not (await planned(live))["speed"]["calibrated"]
    for _ in range(8):  # a machine that runs other tests beside this one may be too busy
        events = [e async for e in live.admin.calibrate(m.CalibrateRequest(model="tiny"))]
        if events[-1].done:
            break
        assert "too busy to be measured" in events[-1].fault.message
    assert events[-1].done, events[-1].fault
    assert json.loads(events[-1].result)["decode"]
    assert (await planned(live))["speed"]["calibrated"]

    actions = m.CalibrationsRequestAction
    edit = m.CalibrationsRequest(model="tiny", action=actions.EDIT, choices={"parallel": 3})
    assert (await live.admin.calibrations(edit)).fault is None
    assert (await planned(live))["parallel"] == 3
    wrong = m.CalibrationsRequest(model="tiny", action=actions.EDIT, choices={"speed": 3})
    assert "no choice 'speed'" in (await live.admin.calibrations(wrong)).fault.message

    ledger = json.loads((await live.admin.memory(m.MemoryRequest())).ledger)
    terms = {term["kind"]: term for term in ledger["models"][0]["terms"]}
    assert {"weights", "kv", "scratch", "buffer pool", "process", "prefix cache"} <= set(terms)
    assert terms["weights"]["measured_bytes"] == terms["weights"]["priced_bytes"]
    assert ledger["reserve_bytes"] > 0

    clear = m.CalibrationsRequest(action=actions.CLEAR)
    assert (await live.admin.calibrations(clear)).cleared == 1
    assert not (await planned(live))["speed"]["calibrated"]
