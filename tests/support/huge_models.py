"""A mixture of experts of more than 400 GB on disk, all of it holes."""

from pathlib import Path
from typing import Any

from model_headers import Quant, decoder, write_model

HUGE: dict[str, Any] = {
    "model_type": "qwen3_moe", "num_hidden_layers": 94, "hidden_size": 4096,
    "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
    "intermediate_size": 12288, "vocab_size": 151936, "num_experts": 256,
    "num_experts_per_tok": 8, "moe_intermediate_size": 1536, "max_position_embeddings": 262144,
    "quantization": {"group_size": 64, "bits": 8},
}  # fmt: skip


def write_huge(folder: Path, shards: int = 90) -> Path:
    return write_model(folder / "huge", HUGE, decoder(HUGE, Quant(8)), shards=shards)
