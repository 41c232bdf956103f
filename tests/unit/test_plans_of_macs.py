"""Plans that Macs can hold: the golden table of docs/memory.md, and the law behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import mac_plans
from swiftlm_engine.brain.facts import ModelFacts
from swiftlm_engine.brain.ledger import EntryKind
from swiftlm_engine.brain.plan import Plan, PlanRequest, Toggle, make_plan
from swiftlmd.config.settings import Settings
from swiftlmd.memory import Device, Governor, Level, Reading, Watermarks
from swiftlmd.memory.machine import Machine

PAGE = (Path(__file__).parents[2] / "docs" / "memory.md").read_text("utf-8")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelFacts]:
    return mac_plans.read_all(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def made(models: dict[str, ModelFacts]) -> dict[str, list[Plan]]:
    return mac_plans.plans(models)


def test_the_table_of_plans_is_what_the_planner_says_today(made: dict[str, list[Plan]]) -> None:
    table = mac_plans.table(made)
    assert (len(made), len(mac_plans.SHAPES)) == (14, 8)
    assert f"{mac_plans.START}\n{table}\n{mac_plans.END}" in PAGE, "run `make fits`"


class MacReadings:
    def __init__(self, reading: Reading) -> None:
        self.read = lambda pids: reading


def governed(state: mac_plans.MacState, settings: Settings) -> int:
    """The governor's budget on this Mac."""
    limits = state.limits()
    device = Device(limits.accelerator, limits.device_name, limits.working_set_bytes)
    readings = MacReadings(Reading(limits.ram_bytes, limits.reclaimable_bytes or 0, 0))
    machine = Machine(device, readings, lambda: None, lambda: settings, None)  # type: ignore[arg-type]
    return machine.measure_budget()


def hold(plan: Plan, budget: int) -> None:
    """The plan in full use stays below the soft mark, and the governor leaves it alone."""
    granted = plan.total_bytes - plan.need.of(EntryKind.PAGE_CACHE)
    assert granted <= Watermarks().soft * budget
    governor = Governor(budget, granted=lambda: plan.needed_bytes)
    for second in range(20):
        decision = governor.observe(Reading(plan.machine.ram_bytes, 0, granted), second)
        assert (decision.level, decision.actions) == (Level.CALM, ())


def test_what_a_plan_grants_never_exceeds_the_soft_mark(made: dict[str, list[Plan]]) -> None:
    for state in mac_plans.STATES:
        budget = governed(state, Settings())
        for plan in made[state.name]:
            if not plan.refused:
                hold(plan, budget)


@pytest.mark.parametrize("budget_gb", [5, 8])
def test_a_budget_of_the_user_may_be_granted_in_full(
    models: dict[str, ModelFacts], budget_gb: int
) -> None:
    state = mac_plans.STATES[3]
    budget = governed(state, Settings(engine_memory_budget=f"{budget_gb}GB"))
    assert 0 <= 0.85 * budget - budget_gb * 10**9 < 10
    request = PlanRequest(budget_bytes=budget_gb * 10**9, stream=Toggle.OFF)
    plan = make_plan(models["Llama 3B"], request, state.limits())
    assert not plan.refused
    hold(plan, budget)


def test_normal_pressure_makes_free_memory_advice_and_a_warning_a_limit(
    models: dict[str, ModelFacts],
) -> None:
    _, _, busy, _, yellow, *_ = mac_plans.STATES
    model = models["Qwen3 8B"]
    loaded = make_plan(model, PlanRequest(), busy.limits())
    assert not loaded.refused
    assert any("compress what other programs hold" in warning for warning in loaded.warnings)
    refused = make_plan(model, PlanRequest(), yellow.limits())
    assert refused.refused
    assert refused.binding.name == "reclaimable now"
    assert any("close programs" in fix for fix in refused.fixes)
