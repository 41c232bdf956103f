"""Tiny random models that every test of the project may load: no download, built in under a second.

`make_model(name, folder)` writes a complete mlx-lm folder (config, float32 weights, tokenizer, chat
template) and returns it. The weights are random but not degenerate: greedy text varies and depends
on tokens far back, so that a wrong cache shows as wrong text. The same arguments give the same
bytes. The tokenizer is a byte-level BPE trained here; any text round-trips.
"""

import functools
import importlib
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.utils import MODEL_REMAPPING
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

Config = dict[str, Any]

SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
]

CHATML = (
    "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_LLAMA: Config = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
_MOE: Config = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
}
_DELTA_NET: Config = {
    "num_hidden_layers": 4,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
}
_MLA: Config = {
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "qk_nope_head_dim": 16,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
}

_GEMMA3: Config = _LLAMA | {
    "model_type": "gemma3_text",
    "num_hidden_layers": 4,
    "sliding_window": 64,
    "sliding_window_pattern": 2,
    "rope_local_base_freq": 10000.0,
    "query_pre_attn_scalar": 32,
}
_GEMMA4: Config = _LLAMA | {
    "model_type": "gemma4_text",
    "num_hidden_layers": 4,
    "sliding_window": 64,
    "sliding_window_pattern": 2,
    "global_head_dim": 64,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "use_double_wide_mlp": False,
    "tie_word_embeddings": True,
}
_QWEN3_NEXT: Config = _LLAMA | _MOE | _DELTA_NET
_QWEN3_NEXT |= {
    "model_type": "qwen3_next",
    "shared_expert_intermediate_size": 64,
    "partial_rotary_factor": 0.5,
}

# Name of the model -> config; the cache classes per layer stand beside each.
CONFIGS: dict[str, Config] = {
    # KVCache
    "llama": _LLAMA | {"model_type": "llama"},
    "mistral": _LLAMA | {"model_type": "mistral"},
    "qwen2": _LLAMA | {"model_type": "qwen2", "head_dim": 16},
    "qwen3": _LLAMA | {"model_type": "qwen3"},
    "phi3": _LLAMA
    | {
        "model_type": "phi3",
        "head_dim": 16,
        "original_max_position_embeddings": 64,
        "rope_scaling": {"type": "longrope", "long_factor": [1.5] * 8, "short_factor": [1.0] * 8},
    },
    "ministral3": {
        "model_type": "mistral3",
        "text_config": _LLAMA
        | {
            "model_type": "ministral3",
            "rope_parameters": {
                "type": "default",
                "rope_theta": 10000.0,
                "llama_4_scaling_beta": 0.1,
                "original_max_position_embeddings": 64,
            },
        },
    },
    "glm4": _LLAMA | {"model_type": "glm4", "attention_bias": True, "partial_rotary_factor": 0.5},
    # KVCache, mixture of experts
    "qwen3_moe": _LLAMA | _MOE | {"model_type": "qwen3_moe"},
    "olmoe": _LLAMA
    | _MOE
    | {"model_type": "olmoe", "intermediate_size": 64, "num_key_value_heads": 4},
    "glm4_moe": _LLAMA
    | _MOE
    | {
        "model_type": "glm4_moe",
        "n_group": 1,
        "topk_group": 1,
        "n_shared_experts": 1,
        "n_routed_experts": 4,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 1,
        "rope_scaling": None,
        "use_qk_norm": True,
        "attention_bias": False,
        "partial_rotary_factor": 0.5,
    },
    "glm4_moe_lite": _LLAMA | _MLA | {"model_type": "glm4_moe_lite"},
    "mixtral": _LLAMA
    | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    # KVCache holding the compressed latent (MLA)
    "deepseek_v3": _LLAMA | _MLA | {"model_type": "deepseek_v3"},
    # CacheList(KVCache, KVCache): latent and indexer
    "deepseek_v32": _LLAMA
    | _MLA
    | {"model_type": "deepseek_v32", "index_head_dim": 32, "index_n_heads": 2, "index_topk": 24},
    # RotatingKVCache of 64 and KVCache alternating
    "gemma3_text": _GEMMA3,
    "gemma4": {"model_type": "gemma4", "text_config": _GEMMA4 | {"attention_k_eq_v": True}},
    "gemma4_moe": {
        "model_type": "gemma4",
        "text_config": _GEMMA4
        | {
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 64,
        },
    },
    # the same of the first layers, whose keys and values the last layers use as well
    "gemma4_e2b": {
        "model_type": "gemma4",
        "text_config": _GEMMA4
        | {
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 16,
            "use_double_wide_mlp": True,
        },
    },
    # RotatingKVCache of 32 and KVCache alternating, attention sinks, experts
    "gpt_oss": _LLAMA
    | {
        "model_type": "gpt_oss",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 64,
        "sliding_window": 32,
    },
    # ArraysCache (GatedDeltaNet) and KVCache alternating
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5": _LLAMA | _DELTA_NET | {"model_type": "qwen3_5"},
    "qwen3_5_moe": {
        "model_type": "qwen3_5_moe",
        "text_config": _QWEN3_NEXT | {"model_type": "qwen3_5_moe_text"},
    },
    # ArraysCache (short convolution) and KVCache alternating
    "lfm2": _LLAMA
    | {
        "model_type": "lfm2",
        "num_hidden_layers": 4,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 64,
        "block_ff_dim": 128,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [1, 3],
    },
    "lfm2_moe": _LLAMA
    | {
        "model_type": "lfm2_moe",
        "num_hidden_layers": 4,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "moe_intermediate_size": 64,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "use_expert_bias": True,
        "num_dense_layers": 1,
        "full_attn_idxs": [1, 3],
    },
    # ArraysCache (delta attention) and KVCache holding the latent
    "kimi_linear": _LLAMA
    | _MLA
    | {
        "model_type": "kimi_linear",
        "num_experts": 4,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "num_hidden_layers": 4,
        "model_max_length": 256,
        "linear_attn_config": {
            "kda_layers": [1, 3],
            "full_attn_layers": [2, 4],
            "num_heads": 2,
            "head_dim": 32,
            "short_conv_kernel_size": 4,
        },
    },
    # ArraysCache only (pure recurrence)
    "mamba2": {
        "model_type": "mamba2",
        "num_heads": 4,
        "head_dim": 32,
        "hidden_size": 64,
        "intermediate_size": 128,
        "state_size": 16,
        "num_hidden_layers": 2,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": False,
        "time_step_limit": [0.0, 100.0],
        "time_step_rank": "auto",
    },
    # CacheList(ArraysCache, KVCache) per layer
    "falcon_h1": _LLAMA
    | {
        "model_type": "falcon_h1",
        "mamba_d_ssm": 128,
        "mamba_d_head": 32,
        "mamba_n_heads": 4,
        "mamba_d_state": 16,
        "mamba_chunk_size": 32,
    },
    # ChunkedKVCache of 32 on three layers of four
    "llama4": {
        "model_type": "llama4",
        "text_config": _LLAMA
        | {
            "model_type": "llama4_text",
            "num_hidden_layers": 4,
            "attention_bias": False,
            "attention_chunk_size": 32,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 128,
            "num_experts_per_tok": 1,
            "num_local_experts": 4,
            "rope_scaling": None,
            "use_qk_norm": True,
        },
    },
}

NAMES = tuple(CONFIGS)
_EMBEDDING = "embed_tokens.weight"
# Families that keep what it takes to go on in different ways: enough for a test of caches.
CACHE_KINDS = (
    "llama",
    "deepseek_v3",
    "deepseek_v32",
    "gemma3_text",
    "gemma4_e2b",
    "gpt_oss",
    "qwen3_next",
    "lfm2",
    "kimi_linear",
    "mamba2",
    "falcon_h1",
    "llama4",
)


def make_model(
    name: str | Config,
    folder: Path | str,
    *,
    template: str = CHATML,
    seed: int = 0,
    **overrides: Any,
) -> Path:
    """Write a tiny model (a key of CONFIGS, or a config) into `folder` and return the folder.

    `overrides` replace config keys, such as num_hidden_layers or max_position_embeddings.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = _write_tokenizer(folder, template)
    base = CONFIGS[name] if isinstance(name, str) else name
    config = _with_overrides(base, {"vocab_size": vocab_size} | overrides)
    weights = _random_weights(config, seed)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def _with_overrides(config: Config, overrides: Config) -> Config:
    """Put the overrides where the model reads them: inside text_config where there is one."""
    end_tokens = {"eos_token_id": SPECIAL_TOKENS.index("<|im_end|>")}
    if "text_config" in config:
        inner = {"text_config": config["text_config"] | overrides}
        return config | end_tokens | inner | {"vocab_size": overrides["vocab_size"]}
    return config | end_tokens | overrides


def _random_weights(config: Config, seed: int) -> dict[str, mx.array]:
    name = MODEL_REMAPPING.get(config["model_type"], config["model_type"])
    module = importlib.import_module("mlx_lm.models." + name)
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(config))
    # mlx's default init is timid: without the gain, attention hardly moves the residual stream
    # and the text does not depend on anything but the last token.
    model.update(tree_map(lambda w: 2.5 * w if w.ndim >= 2 else w, model.parameters()))
    weights = dict(tree_flatten(model.parameters()))
    if config.get("text_config", config).get("tie_word_embeddings"):
        # Gemma scales it up on the way in and reads it again on the way out: as large as the
        # others it drowns the layers, and every token is followed by itself.
        weights = {n: 0.1 * w if n.endswith(_EMBEDDING) else w for n, w in weights.items()}
    mx.eval(weights)
    return weights


def _write_tokenizer(folder: Path, template: str) -> int:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained_tokenizer()),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


@functools.cache
def _trained_tokenizer() -> str:
    """The serialised tokenizer; training takes most of the time, so once per process."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = [
        "the quick brown fox jumps over the lazy dog " * 20,
        "hello world assistant user system",
    ]
    tokenizer.train_from_iterator(text, trainer)
    serialised: str = tokenizer.to_str()
    return serialised
