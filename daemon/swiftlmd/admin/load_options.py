"""The options of one load (`swiftlmctl load --ctx ...`) laid over the configured settings."""

from __future__ import annotations

import dataclasses
from typing import Any

from swiftlm_proto import messages as m
from swiftlm_proto.layers import ALL_LAYERS, AUTO_LAYERS
from swiftlmd.config.settings import OPTIONS, Settings
from swiftlmd.config.values import BadValue, checked
from swiftlmd.faults import Kind, ServiceError

_FOREVER = 0xFFFFFFFF

_KEYS = {
    "context": "engine.context",
    "parallel": "engine.parallel",
    "kv": "engine.kv",
    "memory_budget": "engine.memory_budget",
    "dtype": "engine.dtype",
    "gpu_layers": "engine.gpu_layers",
    "stream_experts": "engine.stream_experts",
    "expert_slots": "engine.expert_slots",
    "top_k_experts": "engine.top_k_experts",
    "ssd_nocache": "engine.ssd_nocache",
    "ssd_prefetch": "engine.ssd_prefetch",
    "draft": "engine.draft",
    "keep_alive_s": "models.keep_alive",
    "prefill_chunk": "engine.prefill_chunk",
    "draft_tokens": "engine.draft_tokens",
    "cpu_weights": "engine.cpu_weights",
}


def options_over(settings: Settings, options: m.LoadOptions | None) -> Settings:
    """`settings` with what the caller asked for; raises ServiceError for a value of no use."""
    values: dict[str, Any] = {}  # Any: the type that each option says
    for name, key in _KEYS.items():
        value = getattr(options, name, None)
        if value is None:
            continue
        option = OPTIONS[key]
        try:
            values[option.name] = checked(option, _as_configured(name, value))
        except BadValue as error:
            raise ServiceError(Kind.INVALID, str(error), param=name) from error
    return dataclasses.replace(settings, **values)


def _as_configured(name: str, value: Any) -> object:  # Any: as the option has it
    if name == "gpu_layers":
        return {ALL_LAYERS: "all", AUTO_LAYERS: "auto"}.get(value, str(value))
    if name == "keep_alive_s" and value == _FOREVER:
        return "never"
    return value
