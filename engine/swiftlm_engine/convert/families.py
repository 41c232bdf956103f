"""What each supported architecture calls its tensors and settings, in GGUF and in mlx-lm.

Mistral's files carry the architecture `llama`. A setting that a family cannot express is refused:
a model that answers slightly wrong is worse than none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from swiftlm_engine.convert.errors import ConvertError
from swiftlm_engine.convert.gguf_file import GgufFile

Config = dict[str, Any]  # config.json: any JSON

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_QK_NORM = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA_NORM = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

# GGUF's llama files interleave each head's two halves; the other families keep them apart.
_GEMMA_PATTERN = 6  # five sliding layers, then one full
_GEMMA_27B_LAYERS = 62


@dataclass(frozen=True, slots=True)
class ArchitectureNames:
    architecture: str  # transformers' class
    model_type: str
    interleaved_qk: bool = False
    norm_plus_one: bool = False  # GGUF stores 1 + weight
    gpu_dtype: str = "float16"  # keeps the blocks' float16 scales exactly
    layer_names: dict[str, str] = field(default_factory=lambda: _LAYER)


FAMILIES = {
    "llama": ArchitectureNames("LlamaForCausalLM", "llama", interleaved_qk=True),
    "qwen2": ArchitectureNames("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ArchitectureNames("Qwen3ForCausalLM", "qwen3", layer_names=_LAYER | _QK_NORM),
    "gemma3": ArchitectureNames(
        "Gemma3ForCausalLM",
        "gemma3_text",
        norm_plus_one=True,
        gpu_dtype="bfloat16",  # its activations pass float16's largest value
        layer_names=_LAYER | _QK_NORM | _GEMMA_NORM,
    ),
}
_IGNORED = ("rope_freqs",)  # a setting in the shape of a tensor: becomes rope_scaling


@dataclass(frozen=True, slots=True)
class Target:
    """Where a GGUF tensor goes."""

    module: str  # model.layers.3.self_attn.q_proj
    leaf: str  # weight or bias
    part: str  # attn_q


def family_of(file: GgufFile) -> ArchitectureNames:
    family = FAMILIES.get(file.architecture)
    if family is None:
        raise ConvertError(
            f"{file.path.name} holds a {file.architecture} model; "
            f"these can be imported: {', '.join(sorted(FAMILIES))} (mistral files say llama)"
        )
    if file.arch("expert_count", 0):
        raise ConvertError(
            f"{file.path.name} is a mixture of experts; pull its MLX or safetensors repository"
        )
    return family


def target_of(name: str, family: ArchitectureNames) -> Target | None:
    """None for a tensor that holds a setting, not weights."""
    parts = name.split(".")
    try:
        if parts[0] in _IGNORED:
            return None
        if parts[0] == "blk":
            number = int(parts[1])
            module = f"model.layers.{number}.{family.layer_names[parts[2]]}"
            return Target(module, parts[3], parts[2])
        return Target(_TOP[parts[0]], parts[1], parts[0])
    except (KeyError, IndexError, ValueError) as error:
        raise ConvertError(
            f"tensor {name} has no place in a {family.model_type} model; "
            "the file is of a newer or changed architecture"
        ) from error


def config_of(file: GgufFile, family: ArchitectureNames) -> Config:
    """config.json without the quantisation."""
    heads = file.need_arch("attention.head_count")
    hidden = file.need_arch("embedding_length")
    config: Config = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": len(file.need("tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": file.need_arch("feed_forward_length"),
        "num_hidden_layers": file.need_arch("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.arch("attention.head_count_kv", heads),
        "head_dim": file.arch("attention.key_length", hidden // heads),
        "hidden_act": "silu",
        "max_position_embeddings": file.need_arch("context_length"),
        # stored as float32: 9 digits bring 1e-05 back
        "rms_norm_eps": round(file.need_arch("attention.layer_norm_rms_epsilon"), 9),
        "rope_theta": file.arch("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(file),
        "attention_bias": False,
        "mlp_bias": False,
    }
    if family.model_type == "gemma3_text":
        config |= _gemma_config(file, config)
    return config


def row_order(
    target: Target, family: ArchitectureNames, config: Config, rows: int
) -> np.ndarray | None:
    """The order in which a Q or K projection's rows must be read, or None for the file's own.

    GGUF's llama files rotate neighbouring rows (0, 1), (2, 3), ...; mlx-lm rotates rows half a
    head apart, as the original checkpoints do.
    """
    if not family.interleaved_qk or target.part not in ("attn_q", "attn_k"):
        return None
    name = "num_attention_heads" if target.part == "attn_q" else "num_key_value_heads"
    heads = config[name]
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(rows)


def _gemma_config(file: GgufFile, config: Config) -> Config:
    layers, head_dim = config["num_hidden_layers"], config["head_dim"]
    full = _GEMMA_PATTERN - 1
    largest = layers == _GEMMA_27B_LAYERS  # it alone scales by hidden / heads
    scalar = config["hidden_size"] // config["num_attention_heads"] if largest else head_dim
    return {
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "rope_local_base_freq": 10000.0,
        "rope_theta": file.arch("rope.freq_base", 1000000.0),
        "sliding_window": file.need_arch("attention.sliding_window"),
        "sliding_window_pattern": _GEMMA_PATTERN,
        "layer_types": [
            "full_attention" if i % _GEMMA_PATTERN == full else "sliding_attention"
            for i in range(layers)
        ],
    }


def _rope_scaling(file: GgufFile) -> Config | None:
    factors = file.tensor("rope_freqs.weight")
    if factors is not None:
        return _llama3_scaling(file, factors)
    kind = file.arch("rope.scaling.type", "none")
    factor = file.arch("rope.scaling.factor", 1.0)
    if kind == "none" or factor in (0, 1):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "type": "linear", "factor": factor}
    if kind == "yarn":
        original = file.need_arch("rope.scaling.original_context_length")
        return {
            "rope_type": "yarn",
            "type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
        }
    raise ConvertError(f"{file.path.name} scales its rotary positions by {kind}, not known here")


def _llama3_scaling(file: GgufFile, factors: np.ndarray) -> Config:
    """Llama 3.1's settings, found again from the divisors that the file keeps per frequency."""
    base = file.arch("rope.freq_base", 10000.0)
    scaling = {
        "rope_type": "llama3",
        "type": "llama3",
        "factor": float(factors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    if not np.allclose(factors, _llama3_factors(scaling, base, factors.size), rtol=1e-3):
        raise ConvertError(f"{file.path.name} has rotary factors that are not Llama 3's")
    return scaling


def _llama3_factors(scaling: Config, base: float, pairs: int) -> np.ndarray:
    wavelength = 2 * np.pi * base ** (np.arange(pairs) / pairs)
    original = scaling["original_max_position_embeddings"]
    low, high, factor = (scaling[k] for k in ("low_freq_factor", "high_freq_factor", "factor"))
    smooth = (original / wavelength - low) / (high - low)
    blended = 1 / ((1 - smooth) / factor + smooth)
    out = np.where(wavelength > original / low, factor, blended)
    return np.where(wavelength < original / high, 1.0, out)
