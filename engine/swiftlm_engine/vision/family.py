"""What the families of vision models have in common: fit a picture, and encode it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from PIL import Image

from swiftlm_engine.vision.placement import Placement


@dataclass(frozen=True, slots=True, eq=False)
class FittedPicture:
    """A picture at the size its model wants, and the text that stands for it in a prompt."""

    pixels: np.ndarray  # (H, W, 3) uint8
    text: str
    num_tokens: int
    grid: tuple[int, int] | None = None  # rows and columns, where the model tells them apart


class VisionFamily(Protocol):
    """`fit` runs on the thread of pictures and touches no MLX; `encode` on the MLX thread."""

    mark: str  # what the chat template writes for an image
    image_token_id: int  # the token that a row of features replaces
    tower: Tower
    placement: Placement | None  # where its image tokens have rows and columns

    def limit(self, num_patches: int) -> None:
        """Pictures of more are scaled down from now on, but where each has the same number."""

    def fit(self, picture: Image.Image) -> FittedPicture: ...

    def encode(self, pixels: mx.array) -> mx.array:
        """From (1, H, W, 3) in 0..255 to one row per image token (1, n, D), and then what the
        first layers add (layers, n, D); lazy."""

    def weight_name(self, name: str) -> str:
        """Where a tensor of a checkpoint belongs in the tower."""

    def arguments(self, token_ids: mx.array) -> dict[str, mx.array]:
        """What its language model wants to be given beside the embeddings of (1, L) tokens."""


class Tower(nn.Module):
    """Under the names that checkpoints use."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


@dataclass(frozen=True, slots=True)
class Normal:
    """How pixels become numbers: by the mean and deviation that the model was trained with."""

    mean: Sequence[float]
    std: Sequence[float]

    @classmethod
    def read(cls, settings: dict[str, Any], mean: Sequence[float], std: Sequence[float]) -> Normal:
        return cls(settings.get("image_mean") or mean, settings.get("image_std") or std)

    def __call__(self, pixels: mx.array) -> mx.array:
        scaled = pixels.astype(mx.float32) * (1 / 255)
        return (scaled - mx.array(self.mean)) / mx.array(self.std)
