"""Checkpoints as their makers publish them: what a plan says of them, the engine does."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache
from planned_models import mac
from tiny_models import CONFIGS, make_model

from swiftlm_engine.brain.facts import read_model
from swiftlm_engine.brain.plan import PlanRequest, Toggle, make_plan
from swiftlm_engine.brain.plan.layer_streaming import layer_sizes, place_layers
from swiftlm_engine.load.device import Device
from swiftlm_engine.load.weights import load_weights
from swiftlm_engine.streaming.report import StreamMode, StreamOptions

Weights = dict[str, mx.array]


def fused_transposed(weights: Weights, bank: str, experts: str) -> None:
    """Of llama4 and qwen3-vl."""
    gate, up, down = _banks(weights, bank)
    weights[f"{experts}.gate_up_proj"] = mx.concatenate([gate, up], axis=1).swapaxes(1, 2)
    weights[f"{experts}.down_proj"] = down.swapaxes(1, 2)


def fused_straight(weights: Weights, bank: str, experts: str) -> None:
    """Of qwen3.5: gate above up, as it is multiplied."""
    gate, up, down = _banks(weights, bank)
    weights[f"{experts}.gate_up_proj"] = mx.concatenate([gate, up], axis=1)
    weights[f"{experts}.down_proj"] = down


def renamed(weights: Weights, bank: str, experts: str) -> None:
    """Of granite."""
    gate, up, down = _banks(weights, bank)
    block = experts.removesuffix(".experts")
    weights[f"{block}.input_linear.weight"] = mx.concatenate([gate, up], axis=1)
    weights[f"{block}.output_linear.weight"] = down


def single(weights: Weights, bank: str, experts: str) -> None:
    """Of mixtral, and of kimi_linear under a name that its module does not have."""
    for name, array in zip(("w1", "w3", "w2"), _banks(weights, bank), strict=True):
        for number in range(len(array)):
            weights[f"{experts}.{number}.{name}.weight"] = array[number]


def single_elsewhere(weights: Weights, bank: str, experts: str) -> None:
    single(weights, bank, experts.replace(".mlp.", ".block_sparse_moe."))


def _banks(weights: Weights, bank: str) -> list[mx.array]:
    return [weights.pop(f"{bank}.{name}_proj.weight") for name in ("gate", "up", "down")]


OWN_CONFIGS = {
    "qwen3_vl_moe": {"text_config": CONFIGS["qwen3_moe"] | {"num_hidden_layers": 3}},
    "granitemoe": CONFIGS["llama"]
    | {
        "num_hidden_layers": 3, "num_local_experts": 4, "num_experts_per_tok": 2,
        "logits_scaling": 1.0, "attention_multiplier": 0.1, "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0, "attention_bias": False,
    },
}  # fmt: skip
PUBLISHED = {
    "llama4": (fused_transposed, "layers"),
    "qwen3_vl_moe": (fused_transposed, "layers"),
    "granitemoe": (renamed, "layers"),
    "kimi_linear": (single_elsewhere, "layers"),
    "mixtral": (single, "experts"),
    "qwen3_5_moe": (fused_straight, "experts"),
}


def publish(family: str, folder: Path) -> Path:
    layers = {"num_hidden_layers": 6} if family == "llama4" else {}
    config = OWN_CONFIGS.get(family) or CONFIGS[family]
    make_model(config | {"model_type": family}, folder, **layers)
    (folder / "model.safetensors.index.json").unlink()
    weights = mx.load(str(folder / "model.safetensors"))
    for name in [name for name in weights if name.endswith("up_proj.weight")]:
        bank = name.removesuffix(".up_proj.weight")
        place, _, last = bank.rpartition(".")
        if last in ("switch_mlp", "experts"):
            PUBLISHED[family][0](weights, bank, f"{place}.experts")
    mx.eval(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("family", PUBLISHED)
def test_a_published_checkpoint_streams_as_its_plan_says_and_computes_the_same(family, tmp_path):
    folder = publish(family, tmp_path)
    facts = read_model(folder)
    made = make_plan(facts, PlanRequest(stream=Toggle.ON), mac(64, 48.0))
    mode = PUBLISHED[family][1]
    planned = made.to_json()["streaming"]
    if family == "kimi_linear":  # no three layers of it are alike: nothing would be left on disk
        assert planned is None
    else:
        assert planned["mode"] == mode
    said = [warning for warning in made.warnings if "cannot be read one by one" in warning]
    assert len(said) == (planned is not None and mode == "layers")
    inputs = mx.array([[(37 * i) % 300 for i in range(12)]])
    resident = load_weights(folder, "", Device.CPU, lambda *_: None).model
    expected = resident(inputs, cache=make_prompt_cache(resident))
    for asked in (StreamMode(mode), StreamMode.AUTO):
        room = _least_bytes(facts) if mode == "layers" else 0
        options = StreamOptions(3, resident_bytes=room, mode=asked)
        loaded = load_weights(folder, "", Device.CPU, lambda *_: None, options)
        got = loaded.model(inputs, cache=make_prompt_cache(loaded.model))
        assert mx.allclose(got, expected, rtol=1e-4, atol=1e-4)
        report = loaded.streaming.to_json()
        loaded.streaming.streamer.close()
        assert report["mode"] == mode
        assert report["misses"] > 0 or family == "kimi_linear"  # no three layers of it are alike
        assert report["problems"] == []


def _least_bytes(facts) -> int:
    """What the plan prices where there is no room to spare."""
    sizes = layer_sizes(facts, None)
    outside = facts.weights.resident_bytes() - sum(size.bytes for size in sizes)
    return outside + place_layers(sizes, 0).held_bytes
