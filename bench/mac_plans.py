"""Writes the table of plans in docs/memory.md: what fourteen Macs do with eight models.

    PYTHONPATH=engine:proto:tests/support python -m bench.mac_plans

Predictions of the planner from headers of the models' published shapes in 4 bits; no measurement.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from model_headers import Quant, decoder, write_model  # `tests/support` is on the path

from bench.mac_fits import MODELS, Mac, config, experts
from swiftlm_engine.brain.facts import ModelFacts, read_model
from swiftlm_engine.brain.plan import MachineLimits, Plan, PlanRequest, Strategy, make_plan

PAGE = Path(__file__).parents[1] / "docs" / "memory.md"
START, END = "<!-- plans: make fits -->\n", "<!-- end of plans -->\n"
GIB = 2**30

SHAPES = {
    "Llama 3B": config("llama", 28, 3072, 24, 8, 8192, context=131072),
    "Qwen3 8B": MODELS["Qwen3-8B"],
    "Mistral 24B": config("llama", 40, 5120, 32, 8, 32768, context=131072),
    "Qwen3 30B MoE": MODELS["Qwen3-30B-A3B"],
    "Qwen3 32B": MODELS["Qwen3-32B"],
    "Llama 70B": MODELS["Llama-3.3-70B"],
    "Qwen3 235B MoE": MODELS["Qwen3-235B-A22B"],
    "Qwen3 480B MoE": config("qwen3_moe", 62, 6144, 96, 8, 8192, context=262144)
    | experts(2560)
    | {"num_experts": 160},
}


@dataclass(frozen=True, slots=True)
class MacState:
    """A Mac at one moment: what could be had without swapping, and the kernel's verdict."""

    mac: Mac
    macos: int
    state: str  # idle, busy or yellow
    free_gb: float

    @property
    def name(self) -> str:
        return f"{self.mac.chip} {self.mac.ram_gb} GB, macOS {self.macos}, {self.state}"

    def limits(self) -> MachineLimits:
        return replace(
            self.mac.limits(),
            reclaimable_bytes=int(self.free_gb * GIB),
            reclaimable_is_advice=self.state != "yellow",
        )


STATES = (
    MacState(Mac("M1", 8, 5.33), 14, "idle", 5.5),
    MacState(Mac("M1", 8, 5.33), 15, "yellow", 3.0),
    MacState(Mac("M2", 16, 10.67), 15, "busy", 6.0),
    MacState(Mac("M4", 16, 10.67), 26, "idle", 12.0),
    MacState(Mac("M4", 16, 10.67), 26, "yellow", 5.0),
    MacState(Mac("M3", 24, 16.0), 15, "busy", 9.0),
    MacState(Mac("M4", 24, 16.0), 26, "idle", 19.0),
    MacState(Mac("M5", 32, 21.33), 26, "idle", 26.0),
    MacState(Mac("M4 Pro", 48, 36.0), 15, "busy", 22.0),
    MacState(Mac("M1 Max", 64, 48.0), 14, "idle", 56.0),
    MacState(Mac("M4 Pro", 64, 48.0), 26, "yellow", 24.0),
    MacState(Mac("M4 Max", 128, 96.0), 26, "idle", 116.0),
    MacState(Mac("M2 Ultra", 192, 144.0), 15, "busy", 120.0),
    MacState(Mac("M3 Ultra", 512, 384.0), 26, "idle", 490.0),
)


def read_all(folder: Path) -> dict[str, ModelFacts]:
    return {
        name: read_model(write_model(folder / name, shape, decoder(shape, Quant(4))))
        for name, shape in SHAPES.items()
    }


def cell(plan: Plan) -> str:
    """Context in thousands; the share of the weights that stays in memory, where some do not."""
    if plan.refused:
        return "no"
    found = f"{plan.settings.context // 1024}k"
    if plan.settings.kv.turbo:
        found += f" {plan.settings.kv}"
    if plan.strategy is Strategy.STREAMED:
        held = plan.engine.resident_bytes / plan.facts.weights.resident_bytes()
        found += f", {held:.0%} in memory"
    return found


def plans(models: dict[str, ModelFacts]) -> dict[str, list[Plan]]:
    """Of each Mac, in the order of the models."""
    request = PlanRequest(prefix_disk=True)
    return {
        state.name: [make_plan(facts, request, state.limits()) for facts in models.values()]
        for state in STATES
    }


def table(made: dict[str, list[Plan]]) -> str:
    rows = [["", *SHAPES], ["---"] * (len(SHAPES) + 1)]
    rows += [[name, *map(cell, found)] for name, found in made.items()]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def written(page: str) -> str:
    """The page with today's table between its two marks."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    with tempfile.TemporaryDirectory() as folder:
        found = table(plans(read_all(Path(folder))))
    return f"{before}{START}\n{found}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
