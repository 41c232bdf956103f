"""How the experts of a checkpoint lie, by name and shape: whether they can be read one by one.

The one place that decides it. The plan and the engine, which looks them up in the same places, both
go by what is found here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from swiftlm_engine.brain.facts.safetensors import TensorHeader

# Families whose experts are a plain SwitchGLU, and where in a layer that is.
_MLP, _BLOCK, _FORWARD = "mlp.switch_mlp", "block_sparse_moe.switch_mlp", "feed_forward.experts"
EXPERT_MODULES: Mapping[str, str] = {
    "Klear": "mlp.experts",
    "bailing_moe": _MLP,
    "deepseek": _MLP,
    "deepseek_v2": _MLP,
    "deepseek_v3": _MLP,
    "deepseek_v32": _MLP,
    "dots1": "mlp.experts",
    "ernie4_5_moe": _MLP,
    "exaone_moe": _MLP,
    "gemma4": "experts.switch_glu",
    "gemma4_text": "experts.switch_glu",
    "glm4_moe": _MLP,
    "glm4_moe_lite": _MLP,
    "gpt_oss": "mlp.experts",
    "granitemoe": _BLOCK,
    "hunyuan": _MLP,
    "kimi_linear": _MLP,
    "lfm2_moe": "feed_forward.switch_mlp",
    "llama4": _FORWARD,
    "llama4_text": _FORWARD,
    "mimo_v2_flash": _MLP,
    "minimax": _BLOCK,
    "mixtral": _BLOCK,
    "olmoe": _MLP,
    "phimoe": _BLOCK,
    "qwen2_moe": _MLP,
    "qwen3_5_moe": _MLP,
    "qwen3_5_moe_text": _MLP,
    "qwen3_moe": _MLP,
    "qwen3_next": _MLP,
    "qwen3_vl_moe": _MLP,
    "qwen3_vl_moe_text": _MLP,
}
MIXTRAL_NAMES = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}

_IN_LAYER = re.compile(r"(?:language_model\.model|model\.language_model|model)\.layers\.\d+\.")
_PROJECTION = "|".join((*MIXTRAL_NAMES, *MIXTRAL_NAMES.values()))
_DTYPES = frozenset({"F32", "F16", "BF16", "U32", "U8"})


def places(path: str) -> Iterator[str]:
    """A module's path, and the names that multimodal checkpoints give it."""
    yield path
    if path.startswith("language_model.model."):
        rest = path.removeprefix("language_model.model.")
        yield f"model.language_model.{rest}"
        yield f"model.{rest}"


def experts_of(place: str) -> str:
    """Where checkpoints that were not converted keep the experts of the module at `place`."""
    parent = place.rpartition(".")[0]
    return parent if parent.endswith(".experts") else parent + ".experts"


def unreadable_expert(model_type: str, experts: Iterable[TensorHeader]) -> str:
    """The first tensor that has no part of an expert as a slot wants it, of a family whose experts
    can be read one by one otherwise; empty if there is none."""
    module = EXPERT_MODULES.get(model_type)
    if module is None:
        return ""
    plain = _plain_names(module)
    fused: dict[str, TensorHeader] = {}
    for tensor in experts:
        inside = _IN_LAYER.match(tensor.name)
        known = plain.fullmatch(tensor.name, inside.end()) if inside else None
        if known is None or tensor.dtype not in _DTYPES:
            return tensor.name
        if known["fused"]:
            fused[tensor.name] = tensor
    return next((name for name in fused if not _lies_straight(name, fused)), "")


def _plain_names(module: str) -> re.Pattern[str]:
    experts = experts_of("." + module)[1:]
    leaf = r"(?:weight|scales|biases|bias)"
    stacked = rf"{re.escape(module)}\.(?:gate|up|down)_proj\.{leaf}"
    single = rf"{re.escape(experts)}\.\d+\.(?:{_PROJECTION})\.{leaf}"
    fused = rf"{re.escape(experts)}\.(?:gate_up_proj|down_proj)"
    return re.compile(rf"{stacked}|{single}|(?P<fused>{fused})")


def _lies_straight(name: str, fused: Mapping[str, TensorHeader]) -> bool:
    """Rows are what comes out: gate_up (experts, 2 x inner, hidden), down (experts, hidden, inner);
    several families publish theirs transposed."""
    parent = name.rpartition(".")[0]
    gate_up, down = fused.get(f"{parent}.gate_up_proj"), fused.get(f"{parent}.down_proj")
    if gate_up is None or down is None or len(gate_up.shape) != 3 or len(down.shape) != 3:
        return False
    return gate_up.shape[1:] == (2 * down.shape[2], down.shape[1])
