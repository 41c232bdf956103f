"""Planning from the headers of very large checkpoints stays under a second."""

import time
from pathlib import Path
from typing import Any

from model_headers import Quant, decoder, write_model

from swiftlm_engine.brain import facts, plan

DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168,
    "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
    "vocab_size": 129280, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
    "max_position_embeddings": 163840, "quantization": {"group_size": 64, "bits": 4},
}  # fmt: skip

M4_MAX = plan.MachineLimits(
    ram_bytes=128 * 2**30,
    accelerator=plan.Accelerator.METAL,
    device_name="Apple M4 Max",
    working_set_bytes=107 * 2**30,
    speed=plan.prior_speed("Apple M4 Max", "metal"),
)


def _seconds_to_plan(folder: Path) -> tuple[float, plan.Plan]:
    started = time.process_time()  # the code's own time, not that of its neighbours
    made = plan.make_plan(facts.read_model(folder), plan.PlanRequest(), M4_MAX)
    return time.process_time() - started, made


def test_checkpoint_of_400_gb_is_planned_in_less_than_a_second(tmp_path: Path) -> None:
    write_model(tmp_path, DEEPSEEK_V3, decoder(DEEPSEEK_V3, Quant(4)), shards=80)
    seconds, made = _seconds_to_plan(tmp_path)
    assert made.facts.checkpoint_bytes > 375e9
    assert made.facts.num_files == 80
    assert made.strategy is plan.Strategy.STREAMED
    assert seconds < 1
