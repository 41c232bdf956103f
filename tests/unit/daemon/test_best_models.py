"""`models best`: what is proposed for a machine, and what never is."""

from __future__ import annotations

from swiftlm_proto import messages as m
from swiftlmd.store import best


def offered(
    name: str, gb: float, speed: float, *, verdict: str = "fits", tools: bool = True,
    context: int = 40_000,
) -> m.OfferedModel:  # fmt: skip
    fit = m.ModelFit(verdict, context=context, decode_low=speed / 2, decode_high=speed * 2)
    return m.OfferedModel(name, size_bytes=int(gb * 1e9), tools=tools, fit=fit)


def named(*found: m.OfferedModel) -> dict[str, str]:
    best.mark(found)
    return {purpose: model.model for model in found for purpose in model.best_for}


def test_each_purpose_gets_its_model() -> None:
    assert named(
        offered("huge", 400, 0.0, verdict="too large"),
        offered("crawls", 70, 0.5, verdict="streams"),
        offered("streams", 60, 6.0, verdict="streams"),
        offered("middle", 8, 30.0),
        offered("small", 0.3, 200.0, context=8192),
    ) == {"largest": "streams", "fastest": "small", "agents": "middle"}


def test_an_agent_needs_tools_context_and_speed() -> None:
    assert "agents" not in named(
        offered("mute", 8, 50.0, tools=False),
        offered("short", 8, 50.0, context=8192),
        offered("slow", 8, 6.0),
    )


def test_nothing_is_proposed_where_nothing_runs() -> None:
    unknown = m.OfferedModel("x", fit=m.ModelFit("unknown"))
    assert named(offered("huge", 400, 9.0, verdict="too large"), unknown) == {}
    assert named(m.OfferedModel("no-fit")) == {}
