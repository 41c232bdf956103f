"""config.json with the language model's own keys in front, and every number checked on the way out.

Multimodal checkpoints nest the language model under `text_config`; conversions drop keys that
mlx-lm's classes have defaults for. Both are settled here, once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swiftlm_engine.brain.facts.errors import BadConfig, MissingFile
from swiftlm_engine.brain.facts.files import CONFIG_BYTES, read_bounded

_TEXT_KEYS = ("text_config", "llm_config", "language_config")

# mlx-lm loads these types by another type's class.
_ALIASES = {
    "mistral": "llama",
    "xverse": "llama",
    "iquestcoder": "llama",
    "kimi_k2": "deepseek_v3",
    "joyai_llm_flash": "deepseek_v3",
    "minimax_m2": "minimax",
    "qwen2_5_vl": "qwen2_vl",
    "gemma4_unified": "gemma4",
    "llava": "mistral3",
    "gemma4_unified_text": "gemma4_text",
    "falcon_mamba": "mamba",
}

# Families that name their sizes otherwise; a dot leads into a section.
_RENAMED: dict[str, dict[str, str]] = {
    "dbrx": {
        "hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
        "num_key_value_heads": "attn_config.kv_n_heads",
        "intermediate_size": "ffn_config.ffn_hidden_size",
        "num_experts": "ffn_config.moe_num_experts", "num_experts_per_tok": "ffn_config.moe_top_k",
        "max_position_embeddings": "max_seq_len",
    },
    "phixtral": {
        "hidden_size": "model_dim", "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads", "vocab_size": "num_vocab",
    },
    "afm7": {
        "hidden_size": "hidden_dim", "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads", "num_key_value_heads": "num_kv_heads",
    },
    "openelm": {
        "hidden_size": "model_dim", "num_hidden_layers": "num_transformer_layers",
        "num_attention_heads": "num_query_heads", "num_key_value_heads": "num_kv_heads",
        "max_position_embeddings": "max_context_length",
    },
    "mamba": {
        "hidden_size": "d_model", "intermediate_size": "d_inner", "state_size": "d_state",
        "num_hidden_layers": "n_layer", "conv_kernel": "d_conv",
    },
}  # fmt: skip

# Sizes that a config may give for each layer: the largest counts where one is asked for.
_PER_LAYER = frozenset({
    "intermediate_size", "moe_intermediate_size", "num_shared_expert", "moe_topk", "moe_top_k",
    "num_experts_per_tok", "num_experts", "num_attention_heads", "num_key_value_heads",
    "num_kv_heads",
})  # fmt: skip

# Keys that published configs leave out because the class has a default (mlx-lm 0.32).
_GEMMA3 = {"num_hidden_layers": 26, "hidden_size": 1152, "head_dim": 256, "sliding_window": 512,
           "sliding_window_pattern": 6, "max_position_embeddings": 32768,
           "tie_word_embeddings": True}  # fmt: skip
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": _GEMMA3 | {"num_attention_heads": 4, "num_key_value_heads": 1},
    "gemma3": _GEMMA3 | {"num_attention_heads": 8, "num_key_value_heads": 4,
                         "vocab_size": 262208, "max_position_embeddings": 131072},
    "gemma4": {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256,
               "global_head_dim": 512, "num_kv_shared_layers": 20, "sliding_window": 512,
               "sliding_window_pattern": 5, "tie_word_embeddings": True},
    "gpt_oss": {"head_dim": 64, "sliding_window": 128},
    "cohere2": {"sliding_window_pattern": 4, "tie_word_embeddings": True},
    "mamba": {"num_attention_heads": 1, "conv_kernel": 4},  # it has no heads: one as wide as it is
    "phixtral": {"model_dim": 2560, "num_heads": 32, "num_layers": 32, "num_vocab": 51200},
    "bailing_moe_v3": {"head_dim": 128, "layer_group_size": 4, "kv_lora_rank": 512,
                       "qk_rope_head_dim": 64},
    "muse_glimmer": {"num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
                     "sliding_window": 2048},
    "gear": {"sliding_window": 512},
    "gemma2": {"attn_logit_softcapping": 50.0},
    "plamo3": {"head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 4,
               "window_size": 2048, "sliding_window_pattern": 8},
    "llama": {"tie_word_embeddings": True},
    # These wrappers untie the model inside.
    "mistral3": {"tie_word_embeddings": False},
    "pixtral": {"tie_word_embeddings": False},
    "glm4_moe_lite": {"kv_lora_rank": 512, "qk_rope_head_dim": 64},
    "deepseek_v3": {"kv_lora_rank": 512, "qk_rope_head_dim": 64},
    "deepseek_v32": {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128},
}  # fmt: skip
_DEFAULTS["gemma4_text"] = _DEFAULTS["gemma4"]
# Their classes tie the embeddings where the config says nothing.
_TIED = (
    "bitnet", "exaone", "falcon_h1", "gear", "glm", "gpt_bigcode", "granite", "granitemoe",
    "granitemoehybrid", "jamba", "lille-130m", "mamba", "ministral3", "olmo2", "olmoe", "plamo2",
    "plamo3", "qwen2", "seed_oss", "smollm3", "spark2_5", "starcoder2", "youtu_llm",
)  # fmt: skip
_DEFAULTS |= {name: {"tie_word_embeddings": True} | _DEFAULTS.get(name, {}) for name in _TIED}


@dataclass(frozen=True, slots=True)
class Config:
    """The keys of one model. `text` is what the language model reads; `root` the whole file."""

    path: Path
    root: Mapping[str, Any]
    text: Mapping[str, Any]
    model_type: str

    def count(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """The first key that is there, as a whole number of at least `least`."""
        for name in names:
            if (value := self.text.get(name)) is not None:
                return self._checked(name, value, least)
        if default is None:
            raise BadConfig(self.path, f"config.json has no {names[0]}")
        return default

    def maybe(self, *names: str) -> int | None:
        """Like `count`, None where no key is there (or it is null)."""
        present = [name for name in names if self.text.get(name) is not None]
        return self._checked(present[0], self.text[present[0]], 0) if present else None

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.text.get(name, self.root.get(name))
        return default if value is None else bool(value)

    def names(self, key: str, count: int) -> list[str] | None:
        """A list of `count` strings, one per layer; None where the key is not there."""
        value = self.text.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < count:
            raise BadConfig(self.path, f"config.json: {key} does not list {count} layers")
        return [str(item) for item in value[:count]]

    def section(self, key: str) -> Mapping[str, Any]:
        value = self.text.get(key, self.root.get(key))
        return value if isinstance(value, Mapping) else {}

    def sizes(self, name: str, count: int, default: int) -> list[int]:
        """One for each of `count` layers, whether the config lists them or gives one for all."""
        value = self.text.get(name)
        if not isinstance(value, list):
            return [default if value is None else self._checked(name, value, 0)] * count
        if len(value) < count:
            raise BadConfig(self.path, f"config.json: {name} does not list {count} layers")
        return [self._checked(name, item, 0) for item in value[:count]]

    def _checked(self, name: str, value: object, least: int) -> int:
        if isinstance(value, list) and value and name in _PER_LAYER:
            return max(self._checked(f"{name} of a layer", item, least) for item in value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        # Past 2**40 every product of two sizes is nonsense: a config that lies, not a model.
        if type(value) is not int or not least <= value < 2**40:
            shown = repr(value)[:80]
            raise BadConfig(self.path, f"config.json: {name} is {shown}, no size of a model")
        return value


def read_config(folder: Path) -> Config:
    path = folder / "config.json"
    try:
        root = json.loads(read_bounded(path, CONFIG_BYTES))
    except FileNotFoundError as error:
        raise MissingFile(path, f"{folder} has no config.json; it is not a model folder") from error
    except (ValueError, RecursionError) as error:
        raise BadConfig(path, f"{path} is not JSON: {error}") from error
    if not isinstance(root, dict) or not isinstance(root.get("model_type"), str):
        raise BadConfig(path, f"{path} names no model_type")
    return make_config(path, root)


def make_config(path: Path, root: Mapping[str, Any]) -> Config:
    """The config of an already parsed file."""
    text: dict[str, Any] = dict(root)
    for key in _TEXT_KEYS:
        if isinstance(root.get(key), dict):
            text |= {k: v for k, v in root[key].items() if v is not None}
            break
    outer = _canonical(root["model_type"])
    inner = _canonical(str(text["model_type"]))
    # gemma3's wrapper has other defaults than gemma3_text alone, so the outer type goes first.
    defaults = _DEFAULTS.get(outer, _DEFAULTS.get(inner, {}))
    text = defaults | text
    for key, place in _RENAMED.get(inner, {}).items():
        if text.get(key) is None and (value := _at(text, place)) is not None:
            text[key] = value
    return Config(path, root, text, inner)


def _at(text: Mapping[str, Any], place: str) -> object:
    """The value at a place such as `ffn_config.moe_top_k`; None where there is none."""
    value: object = text
    for key in place.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _canonical(model_type: str) -> str:
    return _ALIASES.get(model_type, model_type)
