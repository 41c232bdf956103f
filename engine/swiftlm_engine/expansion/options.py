"""Which weights are held as float32 on the CPU back end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpandOptions:
    """Quantized weights to hold as float32, as the plan has priced them: the head, and the blocks
    of the first so many layers."""

    head: bool = False
    attention_layers: int = 0
    mlp_layers: int = 0

    @property
    def wanted(self) -> bool:
        return self.head or self.attention_layers > 0 or self.mlp_layers > 0
