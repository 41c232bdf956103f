"""What a group does not do yet: refused by name, or off with a reason."""

from __future__ import annotations

from dataclasses import replace

from swiftlm_engine.generation import EngineFault, FaultKind
from swiftlm_engine.options import EngineOptions

_EXACT = ("", "auto", "fp16")


def group_options(options: EngineOptions) -> EngineOptions:
    """The options as a group serves them. Raises `EngineFault` for what was asked and is not."""
    if options.stream_experts not in ("", "off"):
        raise _refused("expert streaming", "stream_experts")
    if options.gpu_layers is not None:
        raise _refused("a split between GPU and CPU", "gpu_layers")
    if options.kv not in _EXACT and not options.kv_auto:
        raise _refused(f"kv {options.kv}", "kv")
    if options.draft:
        raise _refused("drafts", "draft")
    # The self-test of a compressed format would have to run on every rank, and files of prefixes
    # would have to be found by all.
    return replace(options, kv="fp16", kv_auto=False, prefix_cache_dir=None)


def _refused(what: str, param: str) -> EngineFault:
    message = f"{what} does not work over several machines yet; load the model on one, or without"
    return EngineFault(FaultKind.UNSUPPORTED, message, param=param)
