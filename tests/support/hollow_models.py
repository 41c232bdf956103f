"""Model folders that are whole on disk and hold only zeros: for tests that load no weights."""

from __future__ import annotations

import json
import struct
from pathlib import Path

_CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 64,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float16",
}


def make_hollow_model(folder: Path) -> Path:
    """A complete tiny llama, as far as config, headers and file sizes tell."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE"}}))
    (folder / "tokenizer_config.json").write_text("{}")
    header, offset = {}, 0
    for name, shape in _tensors():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + bytes(offset)
    (folder / "model.safetensors").write_bytes(content)
    return folder


def _tensors() -> list[tuple[str, list[int]]]:
    hidden, inner, vocabulary = 32, 64, 64
    rows: list[tuple[str, list[int]]] = [
        ("model.embed_tokens.weight", [vocabulary, hidden]),
        ("model.norm.weight", [hidden]),
    ]
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        rows += [(f"{prefix}self_attn.{p}_proj.weight", [hidden, hidden]) for p in "qkvo"]
        rows += [
            (f"{prefix}mlp.gate_proj.weight", [inner, hidden]),
            (f"{prefix}mlp.up_proj.weight", [inner, hidden]),
            (f"{prefix}mlp.down_proj.weight", [hidden, inner]),
            (f"{prefix}input_layernorm.weight", [hidden]),
            (f"{prefix}post_attention_layernorm.weight", [hidden]),
        ]
    return rows
