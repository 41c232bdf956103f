"""What a plan says of cutting layers into equal parts is what mlx then does, whatever the widths.

The ranks of a group are played by a ring that only knows its size: `shard` cuts, nothing is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model
from model_headers import Entry, Quant, linear, write_model
from planned_models import DENSE_8B, mac
from quantized_models import make_quantized
from tiny_models import make_model

from swiftlm_engine.brain.facts import read_model
from swiftlm_engine.brain.plan import GroupHost, LinkSpeed, PlanRequest, Range, best_way
from swiftlm_engine.brain.plan.obstacles import tensor_obstacle
from swiftlm_engine.brain.plan.share import Split

CABLE = LinkSpeed(Range(3e9, 4e9), Range(2e-5, 4e-5))
ODD = {"intermediate_size": 129}
ODD_EXPERTS = {"moe_intermediate_size": 66}
NARROW = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}


@dataclass
class Ring:
    """The first of some ranks."""

    ranks: int

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return self.ranks


def cut(folder: Path, ranks: int) -> str:
    """What mlx says to it."""
    model, _ = load_model(folder, lazy=True)
    try:
        model.shard(Ring(ranks))
        mx.eval(model.parameters())
    except (ValueError, RuntimeError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("family", "overrides", "ranks", "bits"),
    [
        ("llama", {}, 2, 0),
        ("llama", ODD, 2, 0),
        ("qwen3", ODD, 2, 0),
        ("llama", {"intermediate_size": 192}, 2, 4),
        ("llama", {"intermediate_size": 256}, 2, 4),
        ("llama", NARROW, 2, 4),
        ("qwen3_moe", {}, 2, 0),
        ("qwen3_moe", ODD_EXPERTS, 2, 0),
        ("qwen3_moe", {"num_key_value_heads": 4} | ODD_EXPERTS, 4, 0),
        ("qwen3_moe", {"moe_intermediate_size": 192}, 2, 4),
        ("deepseek_v3", {}, 2, 0),
        ("deepseek_v3", ODD, 2, 0),
        ("deepseek_v3", {"num_attention_heads": 4} | ODD_EXPERTS, 4, 0),
        ("gpt_oss", {}, 2, 0),
        ("gpt_oss", {"intermediate_size": 129}, 2, 0),
    ],
)
def test_a_plan_says_of_a_cut_what_mlx_does(
    family: str, overrides: dict[str, Any], ranks: int, bits: int, tmp_path: Path
) -> None:
    if bits:
        folder = make_quantized(family, tmp_path, bits=bits, group_size=64, **overrides)
    else:
        folder = make_model(family, tmp_path, **overrides)
    obstacle = tensor_obstacle(read_model(folder), ranks)
    assert bool(obstacle) == bool(cut(folder, ranks)), obstacle or "no obstacle was seen"


# Experts as published: hidden size, width, packing.
GLM_AIR = (4096, 1408, Quant(4))
GPT_OSS = (2880, 2880, Quant(4))


@pytest.mark.parametrize(
    ("experts", "ranks", "obstacle"),
    [
        (GLM_AIR, 2, ""),
        (GLM_AIR, 4, "the 22 quantization groups of down_proj do not divide by 4"),
        (GPT_OSS, 2, "the 45 quantization groups of down_proj do not divide by 2"),
    ],
)
def test_widths_of_published_experts_are_known(
    experts: tuple[int, int, Quant], ranks: int, obstacle: str, tmp_path: Path
) -> None:
    hidden, inner, quant = experts
    assert tensor_obstacle(read_model(experts_model(tmp_path, hidden, inner, quant)), ranks) == (
        obstacle
    )


def test_experts_in_mxfp4_as_openai_published_them(tmp_path: Path) -> None:
    base, groups = "model.layers.0.mlp.experts", 2880 // 32
    entries = [
        Entry(f"{base}.gate_up_proj_blocks", "U8", (4, 5760, groups, 16)),
        Entry(f"{base}.gate_up_proj_scales", "U8", (4, 5760, groups)),
        Entry(f"{base}.down_proj_blocks", "U8", (4, 2880, groups, 16)),
        Entry(f"{base}.down_proj_scales", "U8", (4, 2880, groups)),
    ]
    folder = experts_model(tmp_path, 2880, 2880, None, entries)
    assert tensor_obstacle(read_model(folder), 2) == ""
    expected = "the 90 quantization groups of down_proj do not divide by 4"
    assert tensor_obstacle(read_model(folder), 4) == expected


def test_a_model_that_cannot_be_cut_takes_the_pipeline_and_tensor_is_refused(
    tmp_path: Path,
) -> None:
    facts = read_model(make_model("llama", tmp_path, **ODD))
    hosts = [GroupHost("a", mac(16, 8.0)), GroupHost("b", mac(16, 8.0), CABLE)]
    request = PlanRequest(context=128, parallel=1)
    assert best_way(facts, request, hosts).split is Split.PIPELINE
    refused = best_way(facts, request, hosts, Split.TENSOR)
    assert refused.obstacle == "the 129 columns of down_proj do not divide by 2"


def experts_model(
    folder: Path, hidden: int, inner: int, quant: Quant | None, entries: list[Entry] | None = None
) -> Path:
    """One layer of a mixture, all header."""
    config = DENSE_8B | {
        "model_type": "gpt_oss", "num_hidden_layers": 1, "hidden_size": hidden,
        "intermediate_size": inner, "num_local_experts": 4, "num_experts_per_tok": 2,
        "num_attention_heads": 64, "head_dim": 64, "vocab_size": 64,
    }  # fmt: skip
    del config["quantization"]
    if quant is not None:
        config["quantization"] = {"group_size": quant.group, "bits": quant.bits}
    base = "model.layers.0.mlp.experts"
    if entries is None:
        entries = [
            *linear(f"{base}.gate_proj", 4, inner, hidden, quant=quant),
            *linear(f"{base}.up_proj", 4, inner, hidden, quant=quant),
            *linear(f"{base}.down_proj", 4, hidden, inner, quant=quant),
        ]
    embedding = linear("model.embed_tokens", 64, hidden, quant=quant)
    return write_model(folder, config, [*embedding, *linear("lm_head", 64, hidden), *entries])
