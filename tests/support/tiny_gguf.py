"""Writes a tiny model folder as a GGUF file, the way llama.cpp's converter would.

This is the inverse of `swiftlm_engine.convert`, written apart from it: what it renames, reorders
and shifts must come back.
"""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, quantize

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_NORMAL, _CONTROL = 1, 3


def write_gguf(folder: Path, path: Path, arch: str, kind: Type = Type.F32, **changes: Any) -> Path:
    """`kind` is for matrices; vectors stay float32. `changes` add or replace metadata."""
    config = json.loads((folder / "config.json").read_text())
    writer = GGUFWriter(path, arch)
    _metadata(writer, config, arch)
    _vocabulary(writer, folder)
    for key, value in changes.items():
        writer.add_key_value(key.replace("__", "."), *value)
    for name, array in mx.load(str(folder / "model.safetensors")).items():
        _tensor(writer, name, np.array(array.astype(mx.float32)), config, arch, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(writer: GGUFWriter, config: dict[str, Any], arch: str) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    if arch == "gemma3":
        writer.add_sliding_window(config["sliding_window"])


def _vocabulary(writer: GGUFWriter, folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    vocab = dict(tokenizer["model"]["vocab"])
    special = {a["content"] for a in tokenizer["added_tokens"] if a["special"]}
    vocab |= {a["content"]: a["id"] for a in tokenizer["added_tokens"]}
    tokens = [t for t, _ in sorted(vocab.items(), key=lambda item: item[1])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([_CONTROL if t in special else _NORMAL for t in tokens])
    writer.add_token_merges([" ".join(m) for m in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(vocab["<|im_end|>"])
    writer.add_pad_token_id(vocab["<|endoftext|>"])
    template = folder / "chat_template.jinja"
    writer.add_chat_template(
        template.read_text() if template.exists() else settings["chat_template"]
    )


def _tensor(
    writer: GGUFWriter, name: str, array: np.ndarray, config: dict[str, Any], arch: str, kind: Type
) -> None:
    module, _, leaf = name.rpartition(".")
    names = _NAMES | (_GEMMA if arch == "gemma3" else {})
    prefix = ""
    if module.startswith("model.layers."):
        _, _, number, module = module.split(".", 3)
        prefix = f"blk.{number}."
    short = names[module]
    if arch == "llama" and short in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if short == "attn_q" else "num_key_value_heads"]
        array = _interleave(array, heads)
    if arch == "gemma3" and short.endswith("norm"):
        array = array + 1
    if array.ndim == 1 or kind == Type.F32:
        writer.add_tensor(f"{prefix}{short}.{leaf}", np.ascontiguousarray(array, np.float32))
    else:
        packed = quantize(array.astype(np.float32), kind)
        writer.add_tensor(f"{prefix}{short}.{leaf}", packed, raw_dtype=kind)


def _interleave(array: np.ndarray, heads: int) -> np.ndarray:
    """The rotary pairs of each head next to each other, as llama.cpp wants them."""
    shape = array.shape
    halves = array.reshape(heads, 2, shape[0] // heads // 2, *shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(shape)
