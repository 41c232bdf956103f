"""Writes the README's table of what fits on a Mac: predictions of the planner, no measurement.

    PYTHONPATH=engine:proto:tests/support python -m bench.mac_fits

The weights are headers of the models' published shapes in 4 bits. The memory that macOS gives to
the GPU is the default of each size; the bandwidth of each chip is published.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_headers import Quant, decoder, write_model  # `tests/support` is on the path

from swiftlm_engine.brain.facts import ModelFacts, read_model
from swiftlm_engine.brain.plan import (
    Accelerator,
    MachineLimits,
    Plan,
    PlanRequest,
    Strategy,
    make_plan,
    prior_speed,
)

README = Path(__file__).parents[1] / "README.md"
CONTEXT = 32768  # what the plan gives where nobody asks for more
START, END = "<!-- fits: make fits -->\n", "<!-- end of fits -->\n"


@dataclass(frozen=True, slots=True)
class Mac:
    chip: str
    ram_gb: int
    working_set_gb: float

    def limits(self) -> MachineLimits:
        return MachineLimits(
            ram_bytes=self.ram_gb * 2**30,
            accelerator=Accelerator.METAL,
            device_name=f"Apple {self.chip}",
            working_set_bytes=int(self.working_set_gb * 2**30),
            speed=prior_speed(f"Apple {self.chip}", "metal"),
        )


MACS = (
    Mac("M4", 16, 10.67),
    Mac("M4", 32, 21.33),
    Mac("M4 Pro", 64, 48.0),
    Mac("M4 Max", 128, 96.0),
)


def config(
    family: str, layers: int, hidden: int, heads: int, kv: int, inner: int, context: int = 40960
) -> dict[str, Any]:  # Any: the shape of config.json
    return {
        "model_type": family, "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": 128,
        "intermediate_size": inner, "max_position_embeddings": context,
        "vocab_size": 128256 if family == "llama" else 151936,
        "quantization": {"group_size": 64, "bits": 4},
    }  # fmt: skip


def experts(inner: int) -> dict[str, int]:
    return {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": inner}


MODELS = {
    "Qwen3-8B": config("qwen3", 36, 4096, 32, 8, 12288),
    "Qwen3-30B-A3B": config("qwen3_moe", 48, 2048, 32, 4, 6144) | experts(768),
    "Qwen3-32B": config("qwen3", 64, 5120, 64, 8, 25600),
    "Llama-3.3-70B": config("llama", 80, 8192, 64, 8, 28672, context=131072),
    "Qwen3-235B-A22B": config("qwen3_moe", 94, 4096, 64, 4, 12288) | experts(1536),
}


def facts(name: str, folder: Path) -> ModelFacts:
    shape = MODELS[name]
    return read_model(write_model(folder / name, shape, decoder(shape, Quant(4))))


def cell(plan: Plan) -> str:
    """Tokens per second; what the plan had to do for it."""
    if plan.refused:
        return "no"
    speed = plan.speed.decode
    found = f"{number(speed.low)}-{number(speed.high)}"
    if plan.settings.context < CONTEXT:
        found += f" at {plan.settings.context // 1024}k"
    return found + (" (SSD)" if plan.strategy is Strategy.STREAMED else "")


def number(speed: float) -> str:
    return f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}"


def table() -> str:
    heads = [f"{mac.ram_gb} GB ({mac.chip})" for mac in MACS]
    rows = [["4-bit model", *heads], ["---"] * (len(MACS) + 1)]
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            known = facts(name, Path(folder))
            plans = [make_plan(known, PlanRequest(), mac.limits()) for mac in MACS]
            rows.append([name, *map(cell, plans)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def written(page: str) -> str:
    """The page with today's table between its two marks."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    README.write_text(written(README.read_text("utf-8")), "utf-8")
