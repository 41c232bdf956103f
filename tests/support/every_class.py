"""A tiny config for every model class of mlx-lm: what no list of families written here knows of.

`CONFIGS` maps a class's module name to a config of eight layers. A class that mlx-lm gains fails
`test_every_class_of_mlx_lm_has_a_tiny_config` until it stands here.
"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.models
import tiny_models

Config = dict[str, Any]

LAYERS = 8
_BASE: Config = {
    "hidden_size": 64, "num_hidden_layers": LAYERS, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "max_position_embeddings": 256, "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False, "norm_eps": 1e-5, "layer_norm_eps": 1e-5,
    "layer_norm_epsilon": 1e-5, "vocab_size": 300,
}  # fmt: skip
_MOE: Config = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "n_routed_experts": 4, "n_shared_experts": 1, "num_shared_experts": 1, "num_local_experts": 4,
    "norm_topk_prob": True, "first_k_dense_replace": 1, "routed_scaling_factor": 1.0,
    "n_group": 1, "topk_group": 1, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "shared_expert_intermediate_size": 64,
}  # fmt: skip
_MLA: Config = {
    "kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16,
    "v_head_dim": 16, "num_key_value_heads": 4,
}  # fmt: skip
_DELTA: Config = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 32,
    "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4, "full_attention_interval": 2,
}  # fmt: skip
_PAIRS = LAYERS // 2
_SLIDES = ["sliding_attention", "full_attention"] * _PAIRS
_GPT: Config = {
    "n_embd": 64, "n_head": 4, "n_layer": LAYERS, "n_positions": 256, "n_ctx": 256, "n_inner": 128,
}  # fmt: skip

_MAMBA: Config = {
    "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_expand": 2, "mamba_n_heads": 4,
    "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_chunk_size": 32, "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}  # fmt: skip
_GRANITE: Config = {
    "logits_scaling": 1.0, "attention_multiplier": 0.1, "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
}  # fmt: skip
_LONGCAT: Config = _MLA | {
    "num_layers": LAYERS, "attention_method": "MLA", "zero_expert_type": "identity",
    "ffn_hidden_size": 128, "moe_topk": 2, "expert_ffn_hidden_size": 64, "n_routed_experts": 4,
    "zero_expert_num": 2, "routed_scaling_factor": 1.0, "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
}  # fmt: skip
_ROPE_BY_TYPE: Config = {
    "full_attention": {"rope_theta": 10000.0}, "sliding_attention": {"rope_theta": 1000.0},
}  # fmt: skip
_KDA: Config = {
    "kda_layers": [1, 3, 5, 7], "full_attn_layers": [2, 4, 6, 8], "num_heads": 2, "head_dim": 32,
    "short_conv_kernel_size": 4,
}  # fmt: skip

# What each class needs beyond the base, or instead of it.
_OWN: dict[str, Config] = {
    "Klear": _MOE | {"n_shared_experts": 1},
    "afm7": {"hidden_dim": 64, "num_layers": LAYERS, "num_kv_reuse_layers": 1, "num_heads": 4,
             "num_kv_heads": 2},
    "afmoe": _MOE | {"layer_types": _SLIDES, "sliding_window": 32, "num_dense_layers": 1},
    "apertus": {"post_norm": False, "qk_norm": True},
    "baichuan_m1": {"sliding_window": 32, "sliding_window_layers": [0, 2, 4, 6], "conv_window": 2},
    "bailing_hybrid": _MOE | _MLA | {"layer_group_size": 2, "group_norm_size": 2},
    "bailing_moe": _MOE,
    "bailing_moe_linear": _MOE | {"layer_group_size": 2, "group_norm_size": 2},
    "bailing_moe_v3": _MOE | _MLA
    | {"layer_group_size": 2, "moe_shared_expert_intermediate_size": 64},
    "cohere2": {"sliding_window": 32, "sliding_window_pattern": 2},
    "dbrx": {"d_model": 64, "n_layers": LAYERS, "n_heads": 4,
             "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
             "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0}},
    "deepseek": _MOE | {"moe_layer_freq": 1},
    "deepseek_v2": _MOE | _MLA
    | {"topk_method": "greedy", "rope_scaling": {"type": "linear", "factor": 1.0}},
    "deepseek_v41": _MOE | {
        "head_dim": 32, "q_lora_rank": 32, "qk_rope_head_dim": 16, "o_groups": 2,
        "o_lora_rank": 16, "sliding_window": 32, "compress_ratios": [0] * LAYERS,
        "index_n_heads": 2, "index_head_dim": 32, "index_topk": 8, "hc_mult": 2},
    "dots1": _MOE | {"scoring_func": "noaux_tc"},
    "ernie4_5": {"use_bias": False},
    "ernie4_5_moe": {"use_bias": False, "moe_num_experts": 4, "moe_k": 2,
                     "moe_layer_start_index": 1, "moe_layer_interval": 1,
                     "moe_num_shared_experts": 1, "moe_capacity": [64, 64, 64],
                     "moe_intermediate_size": 64},
    "exaone": {"num_layers": LAYERS},
    "exaone4": {"rope_scaling": None, "sliding_window": 32, "sliding_window_pattern": "LG"},
    "exaone_moe": _MOE | {"sliding_window": 32, "layer_types": _SLIDES,
                          "is_moe_layer": [False] + [True] * 7},
    "gear": {"layer_types": ["conv_mixer", "sliding_attention", "conv_mixer", "full_attention"] * 2,
             "sliding_window": 32},
    "gemma2": {"query_pre_attn_scalar": 16, "sliding_window": 32},
    "gemma3": {"text_config": tiny_models.CONFIGS["gemma3_text"]},
    "gemma3n": {"text_config": _BASE | {
        "model_type": "gemma3n_text", "layer_types": _SLIDES, "sliding_window": 32,
        "activation_sparsity_pattern": [0.0] * LAYERS, "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 300,
        "altup_num_inputs": 2, "altup_coef_clip": 120.0, "altup_correct_scale": True,
        "altup_active_idx": 0, "laurel_rank": 8, "rope_local_base_freq": 10000.0,
        "rope_scaling": None, "intermediate_size": [128] * LAYERS,
        "final_logit_softcapping": 30.0, "query_rescale_scalar": 1.0}},
    "gemma4_text": tiny_models.CONFIGS["gemma4"]["text_config"],
    "glm_moe_dsa": _MOE | _MLA | {
        "index_head_dim": 32, "index_n_heads": 2, "index_topk": 24, "topk_method": "noaux_tc",
        "scoring_func": "sigmoid", "moe_layer_freq": 1,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
    "gpt2": _GPT,
    "gpt_bigcode": _GPT,
    "gpt_neox": {"rotary_emb_base": 10000, "rotary_pct": 0.25},
    "gptj": _GPT | {"rotary_dim": 16},
    "granite": _GRANITE,
    "granitemoe": _MOE | _GRANITE,
    "granitemoehybrid": _MOE | _GRANITE | _MAMBA | {
        "layer_types": ["mamba", "attention"] * _PAIRS, "shared_intermediate_size": 64,
        "position_embedding_type": "rope", "normalization_function": "rmsnorm"},
    "hunyuan": _MOE | {
        "moe_topk": 2, "num_shared_expert": 1, "use_mixed_mlp_moe": True, "use_qk_norm": True,
        "use_cla": False, "cla_share_factor": 2,
        "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0}},
    "hunyuan_v1_dense": {"rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0}},
    "iquestloopcoder": {"loop_num": 2, "loop_window_size": 32},
    "jamba": _MOE | _MAMBA | {"attn_layer_offset": 1, "attn_layer_period": 2,
                              "expert_layer_offset": 1, "expert_layer_period": 2},
    "kimi_k25": {"text_config": tiny_models.CONFIGS["deepseek_v3"]},
    "kimi_k3": {"text_config": _BASE | _MLA | {
        "model_type": "kimi_linear", "linear_attn_config": _KDA | {"gate_lower_bound": -5.0},
        "activation_situ_beta": 1.0, "attn_res_block_size": 2, "num_experts": 4,
        "num_experts_per_token": 2, "num_shared_experts": 1, "moe_intermediate_size": 64,
        "first_k_dense_replace": 1}},
    "kimi_linear": tiny_models.CONFIGS["kimi_linear"] | {"linear_attn_config": _KDA},
    "kimi_vl": {"text_config": tiny_models.CONFIGS["deepseek_v3"]},
    "laguna": _MOE | {"layer_types": _SLIDES, "sliding_window": 32,
                      "rope_parameters": _ROPE_BY_TYPE},
    "lfm2-vl": {"text_config": tiny_models.CONFIGS["lfm2"]},
    "lille-130m": {"block_size": 256, "n_embd": 64, "n_head": 4, "n_kv_heads": 2,
                   "n_layer": LAYERS},
    "llama4_text": {"intermediate_size_mlp": 128, "no_rope_layers": [1, 1, 1, 0] * 2,
                    "use_qk_norm": True, "attention_chunk_size": 32},
    "longcat_flash": _LONGCAT,
    "longcat_flash_ngram": _LONGCAT | {
        "ngram_vocab_size_ratio": 4, "emb_neighbor_num": 2, "emb_split_num": 2},
    "mamba": {"state_size": 16, "conv_kernel": 4, "use_bias": False, "use_conv_bias": True,
              "time_step_rank": 4},
    "mellum": _MOE | {"sliding_window": 32, "layer_types": _SLIDES,
                      "rope_parameters": _ROPE_BY_TYPE},
    "mimo_v2_flash": _MOE | {
        "hybrid_layer_pattern": [0, 1] * _PAIRS, "moe_layer_freq": [0] + [1] * 7,
        "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False,
        "sliding_window_size": 32, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
        "layernorm_epsilon": 1e-5, "swa_rope_theta": 1000.0, "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2, "v_head_dim": 16, "swa_head_dim": 16, "swa_v_head_dim": 16,
        "partial_rotary_factor": 0.5},
    "minicpm": {"dim_model_base": 32, "scale_depth": 1.4, "scale_emb": 12.0},
    "minicpm3": _MLA | {"dim_model_base": 32, "scale_depth": 1.4, "scale_emb": 12.0,
                        "rope_scaling": {"type": "longrope", "long_factor": [1.0] * 8,
                                         "short_factor": [1.0] * 8,
                                         "original_max_position_embeddings": 64}},
    "minimax": _MOE | {"shared_intermediate_size": 0, "rotary_dim": 16},
    "minimax_m3_vl": {"text_config": _BASE | {
        "model_type": "minimax_m3_vl_text", "dense_intermediate_size": 128,
        "intermediate_size": 64, "shared_intermediate_size": 64, "num_local_experts": 4,
        "num_experts_per_tok": 2, "moe_layer_freq": [0] + [1] * 7}},
    "ministral3": tiny_models.CONFIGS["ministral3"]["text_config"],
    "mistral3": tiny_models.CONFIGS["ministral3"],
    "mistral4": _MOE | _MLA | {
        "rope_parameters": {"type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                            "original_max_position_embeddings": 64, "beta_fast": 32.0,
                            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                            "llama_4_scaling_beta": 0.1}},
    "muse_spark": {"text_config": _BASE | {
        "model_type": "muse_spark_text", "post_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10000.0}, "layer_rope_theta": [10000.0] * LAYERS,
        "layer_types": _SLIDES, "sliding_window": 32, "final_logit_softcapping": 30.0,
        "output_multiplier": 1.0, "num_local_experts": 4, "num_experts_per_tok": 2,
        "moe_hidden_size": 64, "moe_intermediate_size": 64}},
    "nanbeige": {"num_loops": 2},
    "nemotron-nas": {"block_configs": [
        {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 2.0}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
        {"attention": {"n_heads_in_group": 4}, "ffn": {"no_op": True}},
        {"attention": {"replace_with_linear": True}, "ffn": {"ffn_mult": 2.0}}] * 2},
    "nemotron": {"hidden_act": "relu2", "partial_rotary_factor": 0.5},
    "nemotron_h": {
        "hybrid_override_pattern": "M*-M" * 2, "mamba_num_heads": 4, "mamba_head_dim": 16,
        "mamba_proj_bias": False, "ssm_state_size": 16, "conv_kernel": 4, "n_groups": 1,
        "time_step_limit": [0.0, 100.0], "use_bias": False, "use_conv_bias": True,
        "layer_norm_epsilon": 1e-5},
    "olmo3": {"sliding_window": 32, "layer_types": _SLIDES},
    "olmo_hybrid": _DELTA | {"linear_allow_neg_eigval": True,
                             "layer_types": ["linear_attention", "full_attention"] * _PAIRS},
    "openelm": {"num_transformer_layers": LAYERS, "model_dim": 64, "ffn_dim_divisor": 8,
                "num_query_heads": [4] * LAYERS, "num_kv_heads": [2] * LAYERS,
                "ffn_multipliers": [1.0, 1.5] + [2.0] * 6},
    "phi3small": {"dense_attention_every_n_layers": 2, "ff_intermediate_size": 128,
                  "gegelu_limit": 20.0},
    "phimoe": _MOE | {
        "original_max_position_embeddings": 64,
        "rope_scaling": {"type": "longrope", "long_factor": [1.5] * 8, "short_factor": [1.0] * 8,
                         "long_mscale": 1.0, "short_mscale": 1.0}},
    "phixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "n_layer": LAYERS,
                 "n_head": 4, "n_embd": 64, "rotary_dim": 16, "model_dim": 64,
                 "num_heads": 4, "num_layers": LAYERS, "num_vocab": 300},
    "pixtral": {"text_config": _BASE | {"model_type": "llama"}},
    "plamo": {"num_attention_heads": 8, "n_shared_head": 4, "head_dim": 8},
    "plamo2": {"hidden_size_per_head": 16, "attention_window_size": 32, "mamba_d_state": 16,
               "mamba_d_conv": 4, "mamba_num_heads": 4, "mamba_step": 2, "mamba_chunk_size": 32},
    "plamo3": {"window_size": 32, "sliding_window": 32, "sliding_window_pattern": 2},
    "qwen": {"kv_channels": 16, "layer_norm_epsilon": 1e-5, "no_bias": True},
    "qwen2_moe": _MOE,
    "qwen2_vl": {"text_config": _BASE | {"model_type": "qwen2_vl_text"}},
    "qwen3_5": {"text_config": _BASE | _DELTA | {"model_type": "qwen3_5_text"}},
    "qwen3_vl": {"text_config": _BASE | {"model_type": "qwen3_vl_text"}},
    "qwen3_vl_moe": {"text_config": _BASE | _MOE | {"model_type": "qwen3_vl_moe_text"}},
    "recurrent_gemma": {"conv1d_width": 4, "logits_soft_cap": 30.0, "attention_window_size": 32,
                        "num_key_value_heads": 1,
                        "block_types": ["recurrent", "recurrent", "attention"]},
    "rwkv7": {"a_low_rank_dim": 16, "v_low_rank_dim": 16, "gate_low_rank_dim": 16,
              "decay_low_rank_dim": 16, "head_dim": 32},
    "seed_oss": {"rope_scaling": None},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0] * 2},
    "solar_open": _MOE | {"partial_rotary_factor": 0.5, "use_qk_norm": True},
    "spark2_5": {"sliding_window": 32, "rope_parameters": _ROPE_BY_TYPE, "layer_types": _SLIDES},
    "stablelm": {"use_qkv_bias": False, "partial_rotary_factor": 0.5},
    "starcoder2": {"norm_epsilon": 1e-5},
    "step3p5": {"num_attention_groups": 2, "sliding_window": 32, "layer_types": _SLIDES,
                "moe_num_experts": 4, "moe_top_k": 2, "moe_intermediate_size": 64,
                "share_expert_dim": 64, "moe_layers_enum": "1,2,3,4,5,6,7",
                "partial_rotary_factors": [0.5] * LAYERS, "attention_other_setting": {
                    "num_attention_heads": 4, "num_attention_groups": 2,
                    "attention_type": "sliding_attention", "head_dim": 16}},
    "youtu_llm": _MLA,
}  # fmt: skip

_VOCABULARIES = {"phi3small": 100_352}  # writes to logits that it takes for granted

# What cannot be tried here, and why.
NOT_HERE = {
    "olmo": "ends the process that has no ai2-olmo",
    "bitnet": "its layers are a Metal kernel",
    "muse_spark": "its attention needs a Metal kernel",
    "prism_hadamard_qwen35": "made for one published checkpoint alone",
}


def class_names() -> list[str]:
    """Modules of mlx-lm that hold a model, but for those that cannot be tried here."""
    folder = Path(mlx_lm.models.__path__[0])
    sources = {path.stem: path.read_text() for path in sorted(folder.glob("*.py"))}
    held = [
        name
        for name, text in sources.items()
        if re.search(r"^class Model\(|^from \..* import Model\b", text, re.M)
    ]
    return [name for name in held if name not in NOT_HERE]


def config(name: str, **overrides: Any) -> Config:
    """Where a class reads its text part from `text_config`, that is where overrides go, too."""
    own = _OWN.get(name) or tiny_models.CONFIGS.get(name, {})
    vocabulary = _VOCABULARIES.get(name, 300)
    all_of_them = {"vocab_size": vocabulary, "num_hidden_layers": LAYERS} | overrides
    if "text_config" in own:
        text = own["text_config"] | all_of_them
        return own | {"vocab_size": vocabulary, "model_type": name, "text_config": text}
    return _BASE | own | all_of_them | {"model_type": name}


def build(name: str, **overrides: Any) -> Any:
    module = importlib.import_module(f"mlx_lm.models.{name}")
    return module.Model(module.ModelArgs.from_dict(config(name, **overrides)))


def make_class(name: str, folder: Path, *, tied: bool = False) -> Path:
    """A folder of config and random weights, without a tokenizer. A tied one holds no head."""
    settings = config(name, tie_word_embeddings=tied)
    weights = tiny_models._random_weights(settings, 0)
    if tied:
        weights = {path: w for path, w in weights.items() if "lm_head" not in path.split(".")}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(settings))
    return folder
