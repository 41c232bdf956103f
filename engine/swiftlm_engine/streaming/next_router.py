"""What the next streamed layer will probably ask for: its own router, on this layer's input.

An experiment that is off unless asked for: right for about 70 % of the experts, but what it reads
in vain takes the disk's time from what is needed. The counters `prefetch_used` and
`prefetch_wasted` are its price.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import mlx.nn as nn

Router = Callable[[mx.array], mx.array]  # (..., D) -> (..., m) experts, lazy


class RouterReader(Protocol):
    def read_ahead(self, experts: tuple[int, ...]) -> None: ...


@dataclass(frozen=True, slots=True)
class NextLayer:
    layer: RouterReader
    router: Router


def router_of(block: nn.Module, top_k: int) -> Router | None:
    """Without the least likely expert of a token: it is asked for too seldom to pay for its read.

    None where the block's router is of a kind that is not known.
    """
    gate = block.get("gate") or block.get("router")
    least = max(1, top_k - 1)
    if isinstance(gate, nn.Linear | nn.QuantizedLinear):
        return lambda x: mx.argsort(-gate(x), axis=-1)[..., :least]
    if gate is not None and isinstance(getattr(gate, "top_k", None), int):
        return lambda x: gate(x)[0][..., :least]
    return None
