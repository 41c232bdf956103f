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

# Name of the model -> config; the cache classes per layer stand beside each.
CONFIGS: dict[str, Config] = {
    # KVCache
    "llama": _LLAMA | {"model_type": "llama"},
    # KVCache, mixture of experts
    "qwen3_moe": _LLAMA | _MOE | {"model_type": "qwen3_moe"},
    "mixtral": _LLAMA
    | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    # KVCache holding the compressed latent (MLA)
    "deepseek_v3": _LLAMA | _MLA | {"model_type": "deepseek_v3"},
    # CacheList(KVCache, KVCache): latent and indexer
    "deepseek_v32": _LLAMA
    | _MLA
    | {"model_type": "deepseek_v32", "index_head_dim": 32, "index_n_heads": 2, "index_topk": 24},
    # RotatingKVCache of 64 and KVCache alternating
    "gemma3_text": _LLAMA
    | {
        "model_type": "gemma3_text",
        "num_hidden_layers": 4,
        "sliding_window": 64,
        "sliding_window_pattern": 2,
        "rope_local_base_freq": 10000.0,
        "query_pre_attn_scalar": 32,
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
    "qwen3_next": _LLAMA
    | _MOE
    | _DELTA_NET
    | {
        "model_type": "qwen3_next",
        "shared_expert_intermediate_size": 64,
        "partial_rotary_factor": 0.5,
    },
    "qwen3_5": _LLAMA | _DELTA_NET | {"model_type": "qwen3_5"},
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
        return config | end_tokens | {"text_config": config["text_config"] | overrides}
    return config | end_tokens | overrides


def _random_weights(config: Config, seed: int) -> dict[str, mx.array]:
    module = importlib.import_module("mlx_lm.models." + config["model_type"])
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(config))
    # mlx's default init is timid: without the gain, attention hardly moves the residual stream
    # and the text does not depend on anything but the last token.
    model.update(tree_map(lambda w: 2.5 * w if w.ndim >= 2 else w, model.parameters()))
    weights = dict(tree_flatten(model.parameters()))
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
