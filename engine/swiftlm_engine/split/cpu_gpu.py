"""The first layers of a model on the accelerator, the rest on a stream of the CPU.

A layer computes where it is put, with all that belongs to it: its weights, its caches, its
attention. Nothing is evaluated in between; MLX orders two streams by the arrays that pass from one
to the other. Where memory is shared no byte is saved by it: only the accelerator's working set
shrinks (see docs/memory.md).
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from swiftlm_engine.messages import EngineFault, FaultKind
from swiftlm_engine.streaming.layer_calls import passed_over, replace_call


def install(model: nn.Module, gpu_layers: int, cpu_stream: Any) -> str:
    """Puts all layers but the first `gpu_layers` on `cpu_stream`; returns that in words.

    Call once, before the model computes anything. Raises `EngineFault`: nothing was computed.
    """
    layers = getattr(model, "layers", None)
    if not isinstance(layers, list) or not all(isinstance(x, nn.Module) for x in layers):
        raise EngineFault(
            FaultKind.UNSUPPORTED,
            "the layers of this model are not where they are known to be; "
            "load it with --gpu-layers all",
            param="gpu_layers",
        )
    if not 0 <= gpu_layers <= len(layers):
        raise EngineFault(
            FaultKind.INVALID,
            f"{gpu_layers} layers on the accelerator: the model has {len(layers)}",
            param="gpu_layers",
        )
    calls: dict[str, int] = {}
    compiles = _compiles()
    for number, layer in enumerate(layers[gpu_layers:], gpu_layers):
        _move(layer, cpu_stream, calls, f"layer {number}", compiles=compiles)
    if why := passed_over(model, lambda: calls):
        raise EngineFault(
            FaultKind.UNSUPPORTED, f"{why}; load it with --gpu-layers all", param="gpu_layers"
        )
    rest = len(layers) - gpu_layers
    return f"{gpu_layers} of {len(layers)} layers on the accelerator, {rest} on the CPU"


def _compiles() -> bool:
    """Whether MLX fuses functions in this process; it has no question for it. Evaluates nothing."""
    traces = []

    def traced(x: mx.array) -> mx.array:
        traces.append(x)
        return x

    function = mx.compile(traced)
    for _ in range(2):
        function(mx.zeros(1))
    return len(traces) == 1


def _move(
    layer: nn.Module, stream: Any, calls: dict[str, int], path: str, *, compiles: bool
) -> None:
    base = type(layer)
    calls[path] = 0

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # as the layer's own
        calls[path] += 1
        # Fused functions are compiled by the machine's C++ compiler on the CPU; not every one has
        # it, and next to the products of a layer they gain nothing.
        mx.disable_compile()
        try:
            with mx.stream(stream):
                return base.__call__(self, *args, **kwargs)
        finally:
            if compiles:  # whoever switched it off for the process wants it off
                mx.enable_compile()

    replace_call(layer, call)
