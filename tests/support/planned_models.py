"""Configs of two models and limits of some Macs, for tests of plans."""

from typing import Any

from swiftlm_engine.brain import plan
from swiftlm_engine.brain.plan import Accelerator, MachineLimits

GIB = 2**30

DENSE_8B: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": False,
    "quantization": {"group_size": 64, "bits": 4},
}  # fmt: skip
MOE_30B: dict[str, Any] = {
    "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "intermediate_size": 6144, "vocab_size": 151936, "num_experts": 128,
    "num_experts_per_tok": 8, "moe_intermediate_size": 768, "max_position_embeddings": 40960,
    "quantization": {"group_size": 64, "bits": 4},
}  # fmt: skip


def mac(ram_gib: int, working_set_gib: float, name: str = "Apple M4", **more: Any) -> MachineLimits:
    return MachineLimits(
        ram_bytes=ram_gib * GIB,
        accelerator=Accelerator.METAL,
        device_name=name,
        working_set_bytes=int(working_set_gib * GIB),
        speed=plan.prior_speed(name, "metal"),
        **more,
    )


M4_16 = mac(16, 10.67)
M4_24 = mac(24, 16.0)
M4_PRO_64 = mac(64, 48.0, "Apple M4 Pro")
