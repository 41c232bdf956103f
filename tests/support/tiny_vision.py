"""Tiny random vision models: a language model of `tiny_models.py` with an image tower beside it.

`make_vision_model(name, folder)` writes a folder as mlx-vlm's converter does, so that both mlx-vlm
and this project load it. `picture(seed)` is a picture that no other seed makes.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map
from PIL import Image
from tiny_models import make_model
from transformers import AutoTokenizer

from swiftlm_engine.vision.gemma3 import Gemma3
from swiftlm_engine.vision.gemma4 import Gemma4
from swiftlm_engine.vision.pixtral import Pixtral
from swiftlm_engine.vision.qwen_vl import QwenVl

VOCAB_SIZE = 448
_TEXT = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
_PIXTRAL_TOWER = {
    "model_type": "pixtral",
    "hidden_size": 32,
    "head_dim": 16,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "image_size": 64,
    "patch_size": 8,
    "num_channels": 3,
    "rope_theta": 10000.0,
}
_QWEN = _TEXT | {
    "vocab_size": VOCAB_SIZE,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
}
_QWEN_TOWER = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "patch_size": 8,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
_QWEN3 = _TEXT | {"rope_scaling": {"type": "default", "mrope_section": [6, 5, 5]}}
_QWEN3_5 = _TEXT | {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
    "rope_parameters": {
        "type": "default",
        "mrope_section": [3, 3, 2],
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    },
}
_MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "norm_topk_prob": True,
}
_QWEN3_TOWER = _QWEN_TOWER | {"out_hidden_size": 64, "num_position_embeddings": 64}
CONFIGS: dict[str, dict[str, Any]] = {
    # Sliding windows of 64 and full attention alternating; 16 tokens for each picture
    "gemma3": {
        "model_type": "gemma3",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "mm_tokens_per_image": 16,
        "text_config": _TEXT
        | {
            "model_type": "gemma3_text",
            "sliding_window": 64,
            "sliding_window_pattern": 2,
            "rope_local_base_freq": 10000.0,
            "rope_global_base_freq": 10000.0,
            "query_pre_attn_scalar": 32,
            "mm_tokens_per_image": 16,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "patch_size": 8,
            "image_size": 64,
        },
    },
    # Tokens are looked up for each layer, too, and the last layers share KV (E2B, E4B)
    "gemma4": {
        "model_type": "gemma4",
        "vocab_size": VOCAB_SIZE,
        "text_config": _TEXT
        | {
            "model_type": "gemma4_text",
            "num_hidden_layers": 6,
            "sliding_window": 64,
            "sliding_window_pattern": 2,
            "global_head_dim": 64,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": VOCAB_SIZE,
            "use_double_wide_mlp": True,
            "rope_parameters": {
                "full_attention": {
                    "partial_rotary_factor": 0.25,
                    "rope_theta": 1000000.0,
                    "rope_type": "proportional",
                },
                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
            },
            "tie_word_embeddings": True,
        },
        "vision_config": {
            "model_type": "gemma4_vision",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "global_head_dim": 16,
            "patch_size": 8,
            "pooling_kernel_size": 2,
            "default_output_length": 24,
            "position_embedding_size": 64,
        },
    },
    # Grids of tokens as the picture is shaped; four patches merged into one
    "mistral3": {
        "model_type": "mistral3",
        "spatial_merge_size": 2,
        "text_config": _TEXT | {"model_type": "llama"},
        "vision_config": _PIXTRAL_TOWER,
    },
    "pixtral": {
        "model_type": "pixtral",
        "text_config": _TEXT | {"model_type": "llama"},
        "vision_config": _PIXTRAL_TOWER,
    },
    # Rows and columns as positions (M-RoPE); windows in the tower. mlx-vlm reads the text's keys at
    # the top.
    "qwen2_5_vl": _QWEN
    | {
        "model_type": "qwen2_5_vl",
        "text_config": _QWEN | {"model_type": "qwen2_5_vl"},
        "vision_config": _QWEN_TOWER
        | {
            "model_type": "qwen2_5_vl",
            "out_hidden_size": 64,
            "window_size": 32,
            "fullatt_block_indexes": [1],
        },
    },
    "qwen2_vl": _QWEN
    | {
        "model_type": "qwen2_vl",
        "text_config": _QWEN | {"model_type": "qwen2_vl"},
        "vision_config": _QWEN_TOWER
        | {"model_type": "qwen2_vl", "embed_dim": 32, "hidden_size": 64},
    },
    # The same, interleaved, and features of the tower's first layer for the model's first
    "qwen3_vl": {
        "model_type": "qwen3_vl",
        "text_config": _QWEN3 | {"model_type": "qwen3_vl_text"},
        "vision_config": _QWEN3_TOWER | {"model_type": "qwen3_vl", "deepstack_visual_indexes": [0]},
    },
    "qwen3_vl_moe": {
        "model_type": "qwen3_vl_moe",
        "text_config": _QWEN3 | _MOE | {"model_type": "qwen3_vl_moe_text"},
        "vision_config": _QWEN3_TOWER
        | {"model_type": "qwen3_vl_moe", "deepstack_visual_indexes": [0]},
    },
    # Every second layer is linear attention; half of each head is turned
    "qwen3_5": {
        "model_type": "qwen3_5",
        "text_config": _QWEN3_5 | {"model_type": "qwen3_5_text"},
        "vision_config": _QWEN3_TOWER | {"model_type": "qwen3_5"},
    },
    "qwen3_5_moe": {
        "model_type": "qwen3_5_moe",
        "text_config": _QWEN3_5 | _MOE | {"model_type": "qwen3_5_moe_text"},
        "vision_config": _QWEN3_TOWER | {"model_type": "qwen3_5_moe"},
    },
}
# What a folder says about its pictures, as the converters leave it.
_PREPARATION: dict[str, dict[str, dict[str, Any]]] = {
    "gemma3": {
        "preprocessor_config.json": {
            "image_processor_type": "Gemma3ImageProcessor",
            "size": {"height": 64, "width": 64},
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "resample": 2,
        }
    },
    "gemma4": {
        "processor_config.json": {
            "image_processor": {"patch_size": 8, "pooling_kernel_size": 2, "max_soft_tokens": 24}
        }
    },
    "mistral3": {"preprocessor_config.json": {"size": {"longest_edge": 56}}},
    "pixtral": {
        "preprocessor_config.json": {
            "size": {"longest_edge": 64},
            "patch_size": {"height": 8, "width": 8},
        },
        "processor_config.json": {"patch_size": 8},
    },
}
_MARKS = {
    "gemma3": ("<start_of_image>", "<image_soft_token>", "<end_of_image>"),
    "gemma4": ("<|image>", "<|image|>", "<image|>"),
    "mistral3": ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    "pixtral": ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
}
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}MARK{% else %}{{ p['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


_QWEN_MARKS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
_QWENS = tuple(name for name in CONFIGS if name.startswith("qwen"))
_QWEN_SIZES = {"patch_size": 8, "min_pixels": 256, "max_pixels": 8192}
_PREPARATION |= {name: {"preprocessor_config.json": _QWEN_SIZES} for name in _QWENS}
_MARKS |= dict.fromkeys(_QWENS, _QWEN_MARKS)


def make_vision_model(name: str, folder: Path, seed: int = 0) -> Path:
    """A complete folder, config and tokenizer and both parts' weights."""
    template = _TEMPLATE.replace("MARK", mark(name))
    config = CONFIGS[name]
    make_model(config, folder, template=template, seed=seed, vocab_size=VOCAB_SIZE)
    config = json.loads((folder / "config.json").read_text()) | _token_ids(name, folder)
    (folder / "config.json").write_text(json.dumps(config))
    if name == "gemma3":
        _tie(folder)
    for file, settings in _PREPARATION[name].items():
        (folder / file).write_text(json.dumps(settings))
    _write_tower(config, folder, seed)
    return folder


def mark(name: str) -> str:
    """What the template writes for an image."""
    if name.startswith("qwen"):
        return "".join(_MARKS[name])
    return _MARKS[name][1 if name == "gemma4" else 0]


def picture(seed: int = 0, size: tuple[int, int] = (48, 32), kind: str = "PNG") -> bytes:
    """Blocks of random colours, encoded."""
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(blocks).resize(size, Image.Resampling.NEAREST).save(file, kind)
    return file.getvalue()


def _token_ids(name: str, folder: Path) -> dict[str, int]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": list(_MARKS[name])})
    tokenizer.save_pretrained(folder)
    first, second, third = tokenizer.convert_tokens_to_ids(list(_MARKS[name]))
    if name == "gemma3":
        return {"boi_token_index": first, "image_token_index": second, "eoi_token_index": third}
    if name == "gemma4":
        return {"boi_token_id": first, "image_token_id": second, "eoi_token_id": third}
    if name.startswith("qwen"):
        return {
            "vision_start_token_id": first,
            "image_token_id": second,
            "vision_end_token_id": third,
        }
    return {"image_token_index": first}


def _varied(weight: mx.array) -> mx.array:
    return 2.5 * weight + 0.2 * mx.random.normal(weight.shape) if weight.ndim >= 2 else weight


def _tie(folder: Path) -> None:
    """Gemma's head is its embedding; mlx-vlm reads no other."""
    file = folder / "model.safetensors"
    weights = dict(mx.load(str(file)))
    del weights["language_model.lm_head.weight"]
    mx.eval(weights)  # before its file is written over
    mx.save_safetensors(str(file), weights, metadata={"format": "mlx"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, file.name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _family(config: dict[str, Any], tokenizer: Any) -> Any:
    if config["model_type"].startswith("qwen"):
        return QwenVl(config, {}, tokenizer, [])
    if config["model_type"] == "gemma4":
        return Gemma4(config, {}, tokenizer, None)
    return (Gemma3 if config["model_type"] == "gemma3" else Pixtral)(config, {}, tokenizer)


def _write_tower(config: dict[str, Any], folder: Path, seed: int) -> None:
    mx.random.seed(seed)
    tower = _family(config, AutoTokenizer.from_pretrained(folder)).tower
    # Gemma's projection starts as ones, which say nothing of zero-mean features.
    tower.update(tree_map(_varied, tower.parameters()))
    weights = dict(tree_flatten(tower.parameters()))
    mx.save_safetensors(str(folder / "model-vision.safetensors"), weights)
    index_file = folder / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    index["weight_map"] |= dict.fromkeys(weights, "model-vision.safetensors")
    index_file.write_text(json.dumps(index))
