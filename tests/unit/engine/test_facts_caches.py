"""The formula of every layer kind against the bytes of mlx-lm's own caches, on tiny instances.

Nothing is evaluated: the caches' arrays have their shapes, and so their bytes, before that.
"""

import importlib
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny_models
from mlx_lm.models.cache import make_prompt_cache

from swiftlm_engine.brain.facts import KvFormat
from swiftlm_engine.brain.facts.config import make_config
from swiftlm_engine.brain.facts.families import layer_list
from swiftlm_engine.brain.facts.kv import store_bytes

_BASE: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "vocab_size": 100, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
_TYPES = ["sliding_attention", "full_attention"] * 2
_LATENT: dict[str, Any] = {
    "kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 16, "v_head_dim": 24,
    "qk_nope_head_dim": 16, "num_key_value_heads": 4, "first_k_dense_replace": 4,
    "n_routed_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2,
}  # fmt: skip

# Shapes that tests/support/tiny_models.py has no instance of.
CONFIGS: dict[str, dict[str, Any]] = {
    "mistral with windows": _BASE | {"model_type": "mistral", "sliding_window": 64},
    "llama with windows": _BASE
    | {"model_type": "llama", "sliding_window": 64, "layer_types": _TYPES},
    "glm4_moe_lite": _BASE | _LATENT | {"model_type": "glm4_moe_lite"},
    "deepseek_v2": _BASE
    | _LATENT
    | {"model_type": "deepseek_v2", "topk_method": "greedy", "n_group": 1, "topk_group": 1,
       "rope_scaling": {"type": "linear", "factor": 1.0}},
    "cohere2": _BASE
    | {"model_type": "cohere2", "head_dim": 16, "sliding_window": 64, "sliding_window_pattern": 2,
       "layer_norm_eps": 1e-5, "logit_scale": 1.0, "layer_norm_bias": False,
       "attention_bias": False},
    "exaone4": _BASE
    | {"model_type": "exaone4", "sliding_window": 64, "sliding_window_pattern": "LLLG",
       "rope_scaling": None, "tie_word_embeddings": False},
    "olmo3": _BASE
    | {"model_type": "olmo3", "sliding_window": 64, "layer_types": _TYPES, "rope_scaling": None},
    "gemma4 with one global head": {
        "model_type": "gemma4", "vocab_size": 100,
        "text_config": _BASE
        | {"model_type": "gemma4_text", "num_hidden_layers": 6, "sliding_window": 64,
           "sliding_window_pattern": 2, "num_kv_shared_layers": 2, "global_head_dim": 64,
           "attention_k_eq_v": True, "num_global_key_value_heads": 1,
           "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 100},
    },
    "nemotron_h": _BASE
    | {"model_type": "nemotron_h", "hybrid_override_pattern": "M*-M", "mamba_num_heads": 4,
       "mamba_head_dim": 16, "mamba_proj_bias": False, "ssm_state_size": 16, "conv_kernel": 4,
       "n_groups": 1, "time_step_limit": [0.0, 100.0], "mlp_bias": False, "use_bias": False,
       "use_conv_bias": True, "layer_norm_epsilon": 1e-5, "attention_bias": False,
       "mlp_hidden_act": "relu2", "residual_in_fp32": False, "rms_norm_eps": 1e-5},
    "gpt_bigcode": {
        "model_type": "gpt_bigcode", "n_embd": 64, "n_layer": 2, "n_inner": 64, "n_head": 4,
        "n_positions": 512, "layer_norm_epsilon": 1e-5, "vocab_size": 100},
    "gpt_bigcode without multi-query": {
        "model_type": "gpt_bigcode", "n_embd": 64, "n_layer": 2, "n_inner": 64, "n_head": 4,
        "n_positions": 512, "layer_norm_epsilon": 1e-5, "vocab_size": 100, "multi_query": False},
    "plamo3": _BASE | {"model_type": "plamo3", "window_size": 64, "sliding_window_pattern": 2},
    "mamba": {
        "model_type": "mamba", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128,
        "state_size": 16, "num_hidden_layers": 2, "conv_kernel": 4, "use_bias": False,
        "use_conv_bias": True, "time_step_rank": 4},
    "dbrx": {
        "model_type": "dbrx", "vocab_size": 100, "d_model": 64, "n_layers": 2, "n_heads": 4,
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 2, "moe_top_k": 1},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000.0}},
    "phixtral": {
        "model_type": "phixtral", "num_vocab": 100, "model_dim": 64, "num_heads": 4,
        "num_layers": 2, "rotary_dim": 8, "num_local_experts": 2},
    "openelm": {
        "model_type": "openelm", "head_dim": 32, "num_transformer_layers": 2, "model_dim": 64,
        "vocab_size": 100, "ffn_dim_divisor": 16, "num_query_heads": [4, 8],
        "num_kv_heads": [1, 2], "ffn_multipliers": [1.0, 2.0]},
    "mistral3 around windows": {
        "model_type": "mistral3",
        "text_config": _BASE
        | {"model_type": "ministral3", "sliding_window": 64, "layer_types": _TYPES,
           "rope_parameters": {"rope_theta": 10000.0, "llama_4_scaling_beta": 0.1,
                               "original_max_position_embeddings": 4096}}},
    "granitemoehybrid": _BASE
    | {"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"] * 2,
       "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1,
       "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 32, "mamba_conv_bias": True,
       "mamba_proj_bias": False, "embedding_multiplier": 1.0, "attention_multiplier": 1.0,
       "logits_scaling": 1.0, "residual_multiplier": 1.0, "attention_bias": False,
       "num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 64,
       "position_embedding_type": "rope", "normalization_function": "rmsnorm"},
}  # fmt: skip
CASES = {name: config | {} for name, config in tiny_models.CONFIGS.items()} | CONFIGS
_REMAPPED = {"mistral": "llama"}


def _model(config: dict[str, Any]) -> Any:
    name = _REMAPPED.get(config["model_type"], config["model_type"])
    module = importlib.import_module("mlx_lm.models." + name)
    return module.Model(module.ModelArgs.from_dict(config))


def _with_vocabulary(config: dict[str, Any]) -> dict[str, Any]:
    if "text_config" in config:
        return config | {"text_config": {"vocab_size": 100} | config["text_config"]}
    return {"vocab_size": 100} | config


def _run(model: Any, cache: list[Any], prompt: int, generated: int, chunk: int = 10**6) -> int:
    for start in range(0, prompt, chunk):
        model(mx.zeros((1, min(chunk, prompt - start)), mx.int32), cache=cache)
    for _ in range(generated):
        model(mx.zeros((1, 1), mx.int32), cache=cache)
    return sum(entry.nbytes for entry in cache)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_kv_formula_equals_the_bytes_of_mlx_lm_caches(name: str, dtype: mx.Dtype) -> None:
    config = _with_vocabulary(CASES[name])
    listed = layer_list(make_config(Path("config.json"), config))
    model = _model(config)
    model.set_dtype(dtype)
    size = dtype.size
    state = sum(layer.state_bytes(size) for layer in listed.layers)
    stores = [store for layer in listed.layers for store in layer.stores]
    assert not listed.assumed
    # below, at and beyond windows and growth strides
    for prompt, generated in ((1, 1), (7, 3), (64, 1), (250, 7), (300, 1)):
        real = _run(model, make_prompt_cache(model), prompt, generated)
        priced = sum(store_bytes(s, KvFormat.FP16, size, prompt, generated) for s in stores)
        assert state + priced == real, (prompt, generated)


@pytest.mark.parametrize(
    "name",
    ["gemma3_text", "gpt_oss", "gemma4 with one global head", "llama", "qwen3_5", "llama4"],
)
@pytest.mark.parametrize("chunk", [32, 128])
def test_prefill_in_chunks_never_holds_more_than_the_formula_allows(name: str, chunk: int) -> None:
    config = _with_vocabulary(CASES[name])
    listed = layer_list(make_config(Path("config.json"), config))
    model = _model(config)
    real = _run(model, make_prompt_cache(model), 512, 0, chunk)
    most = sum(layer.state_bytes(4) for layer in listed.layers) + sum(
        store.prefill_tokens(512, chunk) * store.elements_per_token * 4
        for layer in listed.layers
        for store in layer.stores
    )
    assert real == most
