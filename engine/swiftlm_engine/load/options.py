"""How a model is to be loaded and served: the plan's numbers, as the engine takes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from swiftlm_engine.expansion.options import ExpandOptions


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """0 or "" means the default of this machine and model."""

    model: str
    folder: Path
    context: int = 0
    parallel: int = 0
    prefill_chunk: int = 0
    max_queue: int = 0
    slice_ms: int = 0
    kv: str = ""
    kv_auto: bool = False  # `kv` is the plan's choice; exact KV may take its place
    dtype: str = ""
    exact: str = ""  # auto, on, off
    prefix_cache_bytes: int = 0
    prefix_cache_dir: Path | None = None
    prefix_cache_dir_bytes: int = 0
    memory_limit_bytes: int = 0
    buffer_cache_bytes: int | None = None  # None: MLX's own limit; 0: nothing freed is kept
    wired_bytes: int = 0
    kv_budget_bytes: int = 0
    draft: str = ""
    draft_tokens: int = 0
    gpu_layers: int | None = None
    stream_experts: str = ""
    expert_slots: int = 0
    top_k_experts: int = 0
    resident_bytes: int = 0
    ssd_nocache: str = ""  # auto, on, off
    ssd_prefetch: str = ""  # off, next-router
    ssd_threads: int = 0
    template_kwargs: dict[str, object] = field(default_factory=dict)
    records_dir: Path | None = None
    expand: ExpandOptions = field(default_factory=ExpandOptions)
    force: bool = False  # load what the sanity check calls broken
