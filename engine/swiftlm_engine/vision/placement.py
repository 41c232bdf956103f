"""Where tokens stand for models that give image tokens a row and a column (M-RoPE).

mlx-lm's layers take a token's position from its cache. Here each layer's rotary embedding asks a
`Placement` first: for a chunk with images it holds three positions per token, for tokens after
images one shift (a picture of 6 x 4 tokens takes 6 positions, not 24). Qwen3-VL also adds features
of the tower's inner layers to what its first layers return.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn


@dataclass(slots=True, eq=False)
class DeepRows:
    """What the first layers add at these positions of the chunk: (layers, n, D)."""

    positions: mx.array
    rows: mx.array


@dataclass(slots=True, eq=False)
class Placement:
    """Set before a pass, cleared after it. None: positions are what the caches say."""

    chunk: mx.array | None = None  # (3, L): time, row, column
    shift: mx.array | None = None  # (B,)
    deep: DeepRows | None = None

    def clear(self) -> None:
        self.chunk = self.shift = self.deep = None


def install(
    layers: list[Any], sections: Sequence[int], *, interleaved: bool, num_deep: int = 0
) -> Placement:
    """Puts a placement under the layers of a language model. Raises `ValueError` where their
    rotary embedding is not the plain one."""
    placement = Placement()
    for layer in (layer for layer in layers if hasattr(layer, "self_attn")):  # no linear attention
        rope = layer.self_attn.rope
        if type(rope) is not nn.RoPE or rope.traditional:
            raise ValueError(f"{type(rope).__name__} knows no rows and columns")
        axes = _axes(sections, rope.dims // 2, interleaved)
        layer.self_attn.rope = _ImageRope(rope, axes, placement)
    for number, layer in enumerate(layers[:num_deep]):
        _deepen(layer, number, placement)
    return placement


class _ImageRope(nn.Module):
    def __init__(self, rope: nn.RoPE, axes: list[int], placement: Placement) -> None:
        super().__init__()
        self._rope = rope
        self._axes = mx.array(axes)
        self._frequencies = rope.base ** (-mx.arange(0, rope.dims, 2) / rope.dims)
        self._placement = placement

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:  # (B, H, L, D)
        placed = self._placement
        if placed.chunk is None:
            return self._rope(x, offset=offset if placed.shift is None else offset + placed.shift)
        angles = placed.chunk[self._axes].T * self._frequencies  # (L, dims / 2)
        cos, sin = mx.cos(angles), mx.sin(angles)
        half = self._rope.dims // 2
        first, second = x[..., :half], x[..., half : 2 * half]
        turned = [first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :]]
        return mx.concatenate(turned, axis=-1).astype(x.dtype)


def _deepen(layer: Any, number: int, placement: Placement) -> None:
    """The layer stays what it was (others look at its attributes), but for this."""
    base = type(layer)

    def call(self: Any, *args: Any, **kwargs: Any) -> mx.array:
        hidden = base.__call__(self, *args, **kwargs)
        if (deep := placement.deep) is None:
            return hidden
        return hidden.at[0, deep.positions].add(deep.rows[number].astype(hidden.dtype))

    layer.__class__ = type(base.__name__, (base,), {"__call__": call})


def _axes(sections: Sequence[int], half: int, interleaved: bool) -> list[int]:
    """Which of time, row and column turns each pair of dimensions."""
    if sum(sections) != half:
        raise ValueError(f"mrope_section {list(sections)} does not add up to {half}")
    if not interleaved:
        return [axis for axis, count in enumerate(sections) for _ in range(count)]
    axes = [0] * half
    for axis in (1, 2):
        for i in range(axis, 3 * sections[axis], 3):
            axes[i] = axis
    return axes
