"""What works for each family, found out on a tiny model of it; the table of docs/models.md.

PYTHONPATH=proto:engine:daemon:tests/support python -m family_matrix
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import tiny_models
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load
from prefix_runner import Runner, runner, tokens

from swiftlm_engine import turboquant
from swiftlm_engine.brain.facts import read_model
from swiftlm_engine.brain.plan import (
    BadPlanRequest,
    MachineLimits,
    PlanRequest,
    Strategy,
    Toggle,
    make_plan,
)
from swiftlm_engine.brain.plan.layer_streaming import layer_sizes

_ALIKE = {
    "llama": "Llama, SmolLM2",
    "mistral": "Mistral",
    "qwen2": "Qwen2, Qwen2.5",
    "qwen3": "Qwen3",
    "phi3": "Phi-3, Phi-3.5 (scaled positions)",
    "ministral3": "Mistral 3, Ministral 3 (scaled queries)",
    "glm4": "GLM-4 (dense)",
    "qwen3_moe": "Qwen3 MoE",
    "olmoe": "OLMoE",
    "glm4_moe": "GLM-4.5, GLM-4.6 (experts)",
    "glm4_moe_lite": "GLM-4.7 Flash (latent attention, experts)",
    "mixtral": "Mixtral",
    "deepseek_v3": "DeepSeek V3, Kimi K2 (latent attention)",
    "deepseek_v32": "DeepSeek V3.2 (indexed latent attention)",
    "gemma3_text": "Gemma 3 (sliding window)",
    "gemma4": "Gemma 4 31B (sliding window)",
    "gemma4_moe": "Gemma 4 26B-A4B (sliding window, experts)",
    "gemma4_e2b": "Gemma 4 E2B, E4B (sliding window, layers that share KV)",
    "gpt_oss": "gpt-oss (sliding window, sinks)",
    "qwen3_next": "Qwen3-Next (GatedDeltaNet, experts)",
    "qwen3_5": "Qwen3.5, Qwen3.6 (GatedDeltaNet)",
    "qwen3_5_moe": "Qwen3.5 MoE, Qwen3.6 MoE (GatedDeltaNet, experts)",
    "lfm2": "LFM2 (short convolutions)",
    "lfm2_moe": "LFM2 8B-A1B (short convolutions, experts)",
    "kimi_linear": "Kimi Linear (delta and latent attention, experts)",
    "mamba2": "Mamba 2",
    "falcon_h1": "Falcon H1 (Mamba and attention side by side)",
    "llama4": "Llama 4 (chunked attention, experts)",
}


@dataclass(frozen=True)
class Row:
    family: str
    loads: bool
    batches: bool
    prefix: bool
    turbo: str
    streams: str

    def line(self) -> str:
        marks = [self.loads, self.batches, self.prefix, self.turbo, self.streams]
        cells = [m if isinstance(m, str) else "yes" if m else "no" for m in marks]
        return f"| {self.family} | {' | '.join(cells)} |"


def table(folder: Path) -> str:
    head = "| family | loads | batches | prefix cache | turbo KV | from disk (plan) |"
    rows = [row(name, folder / name).line() for name in tiny_models.NAMES]
    return "\n".join([head, "|---|---|---|---|---|---|", *rows])


def row(name: str, folder: Path) -> Row:
    tiny_models.make_model(name, folder)
    model = load(str(folder))[0]
    return Row(
        family=_ALIKE[name],
        loads=_is_finite(model(mx.array([tokens(1, 40)]))),
        batches=all(hasattr(cache, "merge") for cache in make_prompt_cache(model)),
        prefix=_reuses_prefix(model),
        turbo=_turbo(model),
        streams=_streams(folder),
    )


def _is_finite(logits: mx.array) -> bool:
    return bool(mx.isfinite(logits).all().item())


def _reuses_prefix(model: Any) -> bool:
    """The next turn gives the text of a cold run and prefills little more than itself."""
    warm, cold = runner(model), Runner(model)
    prompt = tokens(1, 130)
    longer = prompt + warm.generate(prompt, boundaries=(129,)) + tokens(2, 20)
    warm.num_prefilled = 0
    return warm.generate(longer) == cold.generate(longer) and warm.num_prefilled <= 21


def _turbo(model: Any) -> str:
    turboquant.install(model)
    verdict = turboquant.make_caches(model, "k4v3").verdict
    compressed, layers = verdict.num_compressed_layers, len(make_prompt_cache(model))
    if compressed == layers:
        return "yes"
    return "its full-attention layers" if compressed else "no"


def _streams(folder: Path) -> str:
    facts = read_model(folder)
    try:
        plan = make_plan(facts, PlanRequest(stream=Toggle.ON), MachineLimits(ram_bytes=64 * 10**9))
    except BadPlanRequest:
        return "no"
    if plan.strategy is Strategy.STREAMED:
        return "experts" if plan.streaming else "layers"
    # So few layers that the banks would hold them all.
    return "layers" if layer_sizes(facts, 4) else "no"


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    with tempfile.TemporaryDirectory() as scratch:
        print(table(Path(scratch)))
