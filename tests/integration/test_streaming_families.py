"""Families that the other suites do not serve: their experts stream bit-equally, too.

Where a family keeps its number of experts per token differs, and so do the names in its config.
"""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache
from tiny_models import CONFIGS, make_model

from swiftlm_engine.brain.facts import read_model
from swiftlm_engine.brain.plan.expert_families import streams_experts
from swiftlm_engine.load.device import Device
from swiftlm_engine.load.weights import load_weights
from swiftlm_engine.streaming.report import StreamOptions

SLOTS, TOP_K = 3, 2
COMMON = CONFIGS["llama"] | {
    "num_hidden_layers": 3, "num_experts": 6, "num_experts_per_tok": TOP_K,
    "moe_intermediate_size": 64, "norm_topk_prob": True,
}  # fmt: skip
GROUPED = {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0}
HALF_HEAD = {"head_dim": 16}  # hidden size over heads, which these take for granted
DEEPSEEK = CONFIGS["deepseek_v3"] | {"n_routed_experts": 6, "num_hidden_layers": 3}
CASES = {
    "kimi_k2": DEEPSEEK,
    "kimi_vl": {"text_config": DEEPSEEK},
    "qwen3_vl_moe": {
        "text_config": CONFIGS["qwen3_moe"] | {"num_experts": 6, "num_hidden_layers": 3}
    },
    "kimi_linear": CONFIGS["kimi_linear"] | {"num_experts": 6},
    "llama4": {"text_config": CONFIGS["llama4"]["text_config"] | {"num_local_experts": 6}},
    "minimax_m2": {"num_local_experts": 6, "shared_intermediate_size": 0, "rotary_dim": 32},
    "phimoe": HALF_HEAD
    | {
        "num_local_experts": 6,
        "original_max_position_embeddings": 64,
        "rope_scaling": CONFIGS["phi3"]["rope_scaling"] | {"long_mscale": 1.0, "short_mscale": 1.0},
    },
    "hunyuan": HALF_HEAD
    | {
        "attention_bias": False, "moe_topk": TOP_K, "num_shared_expert": 1,
        "use_mixed_mlp_moe": True, "use_qk_norm": True, "use_cla": False, "cla_share_factor": 2,
        "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0},
    },
    "granitemoe": {
        "num_local_experts": 6, "logits_scaling": 1.0, "attention_multiplier": 0.1,
        "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "attention_bias": False,
    },
    "ernie4_5_moe": {
        "moe_num_experts": 6, "moe_k": TOP_K, "use_bias": False, "moe_layer_start_index": 1,
        "moe_layer_interval": 1, "moe_num_shared_experts": 1, "moe_capacity": [64, 64, 64],
    },
    "dots1": GROUPED
    | {
        "n_routed_experts": 6, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "scoring_func": "noaux_tc", "attention_bias": False,
    },
    "exaone_moe": GROUPED
    | {
        "num_shared_experts": 1, "sliding_window": 32, "is_moe_layer": [False, True, True],
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    },
    "bailing_moe": {"num_shared_experts": 1, "first_k_dense_replace": 1, "head_dim": 16},
    "Klear": {"n_shared_experts": 1, "mlp_only_layers": [0], "decoder_sparse_step": 1,
              "attention_bias": False, "head_dim": 16},
    "mimo_v2_flash": GROUPED
    | {
        "n_routed_experts": 6, "n_shared_experts": 1, "hybrid_layer_pattern": [0, 1, 0],
        "moe_layer_freq": [0, 1, 1], "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False, "sliding_window_size": 32,
        "topk_method": "noaux_tc", "scoring_func": "sigmoid", "layernorm_epsilon": 1e-5,
        "swa_rope_theta": 1000.0, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2,
        "v_head_dim": 32, "swa_head_dim": 32, "swa_v_head_dim": 32, "partial_rotary_factor": 0.5,
    },
}  # fmt: skip


def logits(model, tokens):
    """Of each token, decoded one by one, and of a prompt at once."""
    cache = make_prompt_cache(model)
    steps = [model(mx.array([[token]]), cache=cache) for token in tokens[:6]]
    return mx.concatenate(steps, axis=1), model(mx.array([tokens]), cache=make_prompt_cache(model))


@pytest.mark.parametrize("model_type", CASES)
def test_experts_of_this_family_stream_bit_equally_and_the_plan_knows_it(model_type, tmp_path):
    config = CASES[model_type]
    whole = config if "text_config" in config else COMMON | config
    folder = make_model(whole | {"model_type": model_type}, tmp_path)
    facts = read_model(folder)
    assert streams_experts(facts)
    tokens = [(37 * i) % 300 for i in range(24)]
    resident = load_weights(folder, "", Device.CPU, lambda *_: None).model
    decoded, prompt = logits(resident, tokens)
    loaded = load_weights(folder, "", Device.CPU, lambda *_: None, StreamOptions(SLOTS))
    got, got_prompt = logits(loaded.model, tokens)
    report = loaded.streaming.to_json()
    loaded.streaming.streamer.close()
    assert mx.array_equal(got, decoded)
    assert mx.allclose(got_prompt, prompt, rtol=1e-4, atol=1e-4)
    assert report["problems"] == []
    assert report["misses"] > 0
    assert report["record_bytes"] == facts.weights.experts[0].record_bytes(6)
    assert (report["num_experts"], report["experts_per_token"]) == (
        6,
        facts.weights.experts_per_token,
    )
    assert report["streamed_layers"] == len(facts.weights.experts)
