"""What a group does not do yet: refused by name, or off with a reason."""

from __future__ import annotations

from dataclasses import replace

from swiftlm_engine.load.options import EngineOptions
from swiftlm_engine.messages import EngineFault, FaultKind


def group_options(options: EngineOptions) -> EngineOptions:
    """The options as a group serves them. Raises `EngineFault` for what was asked and is not."""
    if options.stream_experts not in ("", "off"):
        raise _refused("expert streaming", "stream_experts")
    if options.gpu_layers is not None:
        raise _refused("a split between GPU and CPU", "gpu_layers")
    if options.draft:
        raise _refused("drafts", "draft")
    # Files of prefixes would have to be there on every host, and be found by all or none.
    return replace(options, prefix_cache_dir=None)


def _refused(what: str, param: str) -> EngineFault:
    message = f"{what} does not work over several machines yet; load the model on one, or without"
    return EngineFault(FaultKind.UNSUPPORTED, message, param=param)
