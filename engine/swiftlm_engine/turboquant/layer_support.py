"""Which layers of a model may hold compressed KV, from its config alone. No MLX, no weights.

The cache classes the model really makes have the last word (`build.make_caches`); this is what the
planner can say before anything is loaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swiftlm_engine.brain.facts.config import Config as FactsConfig
from swiftlm_engine.brain.facts.config import make_config
from swiftlm_engine.brain.facts.families import head_size, num_layers
from swiftlm_engine.turboquant.formats import MAX_HEAD_DIM, MIN_HEAD_DIM, KVFormat, parse_format

Config = Mapping[str, Any]  # config.json

_FULL = ("full_attention", "attention")  # Granite's hybrids say it shorter
_SINK_TYPES = frozenset({"gpt_oss"})
_SHARING_KEYS = ("num_kv_shared_layers", "use_cla")


@dataclass(frozen=True, slots=True)
class LayerVerdict:
    """The KV format of one layer; `format` None means the model's own cache, and `reason` why."""

    index: int
    format: KVFormat | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    layers: tuple[LayerVerdict, ...]

    @property
    def num_compressed_layers(self) -> int:
        return sum(layer.format is not None for layer in self.layers)

    def lines(self) -> list[str]:
        """One line per distinct outcome, for plans and status."""
        groups: dict[str, list[int]] = {}
        for layer in self.layers:
            name = "kept as it is: " + layer.reason if layer.format is None else layer.format.name
            groups.setdefault(name, []).append(layer.index)
        return [
            f"{len(where)} of {len(self.layers)} layers {name}" for name, where in groups.items()
        ]


def decide(config: Config, mode: str) -> Verdict:
    """The verdict for every layer; raises `UnknownFormat` for a mode that does not exist."""
    format = parse_format(mode)
    text = text_config(config)
    whole = _model_reason(text)
    reasons = [whole or _layer_reason(text, i) for i in range(num_layers(_facts(config)))]
    return Verdict(
        tuple(LayerVerdict(i, None if why else format, why) for i, why in enumerate(reasons))
    )


def text_config(config: Config) -> Config:
    """The language model's part of a config that has several."""
    inner = config.get("text_config")
    if not isinstance(inner, Mapping) or not inner:
        return config
    return {"model_type": config.get("model_type"), **inner}


def head_dim(config: Config) -> int:
    """The head size of the full-attention layers; in Gemma 4 those are wider than the others."""
    return int(text_config(config).get("global_head_dim") or head_size(_facts(config)))


def _facts(config: Config) -> FactsConfig:
    """The planner's reading of a config: it knows every name that a family gives its sizes."""
    present = {key: value for key, value in config.items() if value is not None}
    return make_config(Path("config.json"), {"model_type": "", **present})


def head_dim_reason(dim: int) -> str:
    """Why a head size cannot be compressed; empty if it can."""
    if dim % 8 or not MIN_HEAD_DIM <= dim <= MAX_HEAD_DIM:
        return f"head size {dim} is not a multiple of 8 in {MIN_HEAD_DIM}..{MAX_HEAD_DIM}"
    return ""


def _model_reason(text: Config) -> str:
    if text.get("kv_lora_rank"):
        return "latent attention (MLA) is compressed already"
    if text.get("model_type") in _SINK_TYPES or text.get("add_full_attention_sink_bias"):
        return "attention sinks in the logits"
    if text.get("attn_logit_softcapping"):
        return "soft-capped attention logits"
    if any(text.get(key) for key in _SHARING_KEYS):
        return "layers share KV"
    values = text.get("v_head_dim")
    if values and values != head_dim(text):
        return f"keys of {head_dim(text)} and values of {values} per head"
    return head_dim_reason(head_dim(text))


def _layer_reason(text: Config, index: int) -> str:
    kinds = text.get("layer_types")
    if kinds and index < len(kinds):
        return "" if kinds[index] in _FULL else kinds[index].replace("_", " ")
    pattern = text.get("sliding_window_pattern")
    if isinstance(pattern, str):  # EXAONE 4: one letter per layer, L for local
        return "sliding attention" if pattern and pattern[index % len(pattern)] == "L" else ""
    if pattern and pattern > 1 and (index + 1) % pattern:
        return "sliding attention"
    interval = text.get("full_attention_interval")
    if interval and (index + 1) % interval:
        return "linear attention"
    return ""
