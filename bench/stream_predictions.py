"""What the planner predicts of streamed models on Macs that nobody here has: no measurement.

    PYTHONPATH=engine:proto:tests/support python -m bench.stream_predictions

Sizes come from headers of the
models' shapes (attention of hybrid models is counted as plain), bandwidths are published, disk and
waits are what others report of such machines; hit rates those of three measured families.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from model_headers import Quant, decoder, write_model  # `tests` is on the path

from bench.table import Report
from swiftlm_engine.brain.facts import ModelFacts, read_model
from swiftlm_engine.brain.plan import (
    Accelerator,
    MachineLimits,
    Plan,
    PlanRequest,
    Range,
    Toggle,
    make_plan,
    prior_speed,
)
from swiftlm_engine.brain.plan.machine import BUDGET

GB = 10**9


@dataclass(frozen=True, slots=True)
class Mac:
    chip: str
    ram_gb: int
    working_set_gb: float
    ssd: Range  # bytes per second at records of this size
    sync_s: Range

    def limits(self) -> MachineLimits:
        speed = prior_speed(f"Apple {self.chip}", "metal")
        return MachineLimits(
            ram_bytes=self.ram_gb * 2**30,
            accelerator=Accelerator.METAL,
            device_name=f"Apple {self.chip}",
            working_set_bytes=int(self.working_set_gb * 2**30),
            speed=replace(speed, ssd_bytes_s=self.ssd, sync_s=self.sync_s),
        )


MACS = (
    Mac("M1 Max", 64, 48.0, Range(5e9, 6.5e9), Range(3.5e-4, 7e-4)),
    Mac("M4", 24, 16.0, Range(2.4e9, 2.9e9), Range(5e-4, 1e-3)),
    Mac("M5 Pro", 48, 36.0, Range(5.5e9, 6.5e9), Range(3.5e-4, 7e-4)),
    Mac("M1 Ultra", 64, 48.0, Range(5e9, 6.5e9), Range(3.5e-4, 7e-4)),
)


def config(layers: int, hidden: int, experts: int, inner: int, heads: int, kv: int) -> Any:
    return {
        "model_type": "qwen3_moe", "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": 128,
        "intermediate_size": inner, "vocab_size": 151936, "num_experts": experts,
        "num_experts_per_tok": 8, "moe_intermediate_size": inner,
        "max_position_embeddings": 40960, "quantization": {"group_size": 64, "bits": 4},
    }  # fmt: skip


# shapes, and budgets in GB
MODELS = {
    "Qwen3-30B-A3B": (config(48, 2048, 128, 768, 32, 4), (6, 10, 14)),
    "Qwen3.6-35B-A3B": (config(40, 2048, 256, 512, 16, 2), (8, 10, 14)),
    "gemma-4-26b-a4b": (config(30, 2816, 128, 704, 16, 8), (5, 8)),
    "Qwen3.5-122B-A10B": (config(48, 3072, 256, 1024, 32, 2), (14, 20, 45)),
}


def main() -> None:
    columns = ["model", "budget", "in memory", *(f"{mac.chip} {mac.ram_gb} GB" for mac in MACS)]
    report = Report("streaming: predicted decode, tokens/s (not measured)", columns)
    for name, (shape, budgets) in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            facts = read_model(write_model(Path(folder), shape, decoder(shape, Quant(4))))
            for budget in budgets:
                plans = [_plan(facts, mac, budget) for mac in MACS]
                report.add(name, f"{budget} GB", _held(plans), *map(_decode, plans))
    print(report)


def _plan(facts: ModelFacts, mac: Mac, budget_gb: int) -> Plan:
    request = PlanRequest(
        context=8192, kv="fp16", stream=Toggle.ON, budget_bytes=budget_gb * GB, prefix_cache_bytes=0
    )
    return make_plan(facts, request, mac.limits())


def _held(plans: list[Plan]) -> str:
    found = next(plan.streaming for plan in plans if not plan.refused)
    assert found is not None
    whole = f", {found.resident_layers} layers whole" if found.resident_layers else ""
    return f"{found.slots} of {found.num_experts}{whole}"


def _decode(plan: Plan) -> str:
    if plan.refused or plan.binding.name != BUDGET:
        return "-"  # so much is not to be had there
    return f"{plan.speed.decode.low:.1f} to {plan.speed.decode.high:.1f}"


if __name__ == "__main__":
    main()
