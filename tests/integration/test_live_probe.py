"""The live probe of `canitoolcall` against the whole service on a tiny random model.

Random weights call no tool of their own accord, so what a scenario expects of the model is not
judged, except where the call is forced. What is judged: no request fails, no answer breaks the
protocol, and an answer has the same shape streamed and whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from canitoolcall.probe import (
    BUILTIN_SCENARIOS,
    EQUIVALENCE_CHECK,
    ProbeExpectation,
    ProbeReport,
    Scenario,
    probe,
)
from live_daemon import LiveDaemon, daemon, home
from tiny_models import make_model

SWITCH = {
    "type": "function",
    "function": {
        "name": "switch",
        "description": "Switches the lamp.",
        "parameters": {
            "type": "object",
            "properties": {"state": {"enum": ["on", "off"]}, "lamp": {"enum": ["hall", "attic"]}},
            "required": ["state", "lamp"],
            "additionalProperties": False,
        },
    },
}
FORCED = Scenario(
    id="forced-by-required",
    description="A call that must come, with arguments that random weights can get right.",
    messages=({"role": "user", "content": "Let there be light."},),
    tools=(SWITCH,),
    tool_choice="required",
    expect=ProbeExpectation(("switch",), 1, {"switch": ("state", "lamp")}),
    extra_body={"max_tokens": 400, "parallel_tool_calls": False},
)


@pytest.fixture
async def live() -> AsyncIterator[LiveDaemon]:
    async with home() as place:
        make_model("llama", place.paths.models / "tiny", max_position_embeddings=4096)
        async with daemon(place, real=True) as found:
            yield found


@pytest.mark.timeout(240)
async def test_live_probe_finds_no_broken_answer_and_streams_say_what_whole_answers_say(
    live: LiveDaemon,
) -> None:
    short = [
        replace(one, extra_body={**one.extra_body, "max_tokens": 24}) for one in BUILTIN_SCENARIOS
    ]
    report: ProbeReport = await asyncio.to_thread(
        probe, f"{live.url}/v1", "tiny", scenarios=[*short, FORCED], timeout_s=200
    )
    for outcome in report.outcomes:
        where = f"{outcome.scenario_id}, stream={outcome.stream}: {outcome.detail}"
        assert outcome.status in ("pass", "fail"), where
        assert not outcome.warnings, where
        if outcome.check == EQUIVALENCE_CHECK or outcome.scenario_id == FORCED.id:
            assert outcome.status == "pass", where
