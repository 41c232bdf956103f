"""The Qwen families: a grid of tokens shaped like the picture, with rows and columns (M-RoPE)."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import numpy as np
from PIL import Image

from swiftlm_engine.brain.facts.tower import MAX_IMAGE_TOKENS
from swiftlm_engine.vision import placement
from swiftlm_engine.vision.family import FittedPicture, Normal, Tower
from swiftlm_engine.vision.package import import_model

_HALF = (0.5, 0.5, 0.5)
_QWEN2 = ("qwen2_vl", "qwen2_5_vl")
_SECTIONS = (16, 24, 24)  # where a Qwen2 says nothing; the others always do


class QwenVl:
    def __init__(
        self, config: dict[str, Any], settings: dict[str, Any], tokenizer: Any, layers: list[Any]
    ) -> None:
        name = config["model_type"]
        module = import_model(name)
        vision = module.VisionConfig.from_dict(config["vision_config"])
        self.tower = Tower(vision_tower=module.VisionModel(vision))
        self.image_token_id = config.get("image_token_id", 151655)
        self.mark = tokenizer.convert_ids_to_tokens(self.image_token_id)
        deep = getattr(vision, "deepstack_visual_indexes", ())  # the tower's inner layers
        text = config.get("text_config", config)
        rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
        self.placement: placement.Placement | None = placement.install(
            layers,
            rope.get("mrope_section", _SECTIONS),
            interleaved=name not in _QWEN2,
            num_deep=len(deep),
        )
        self._is_deep = name not in _QWEN2
        self._patch, self._merge = vision.patch_size, vision.spatial_merge_size
        self._frames = vision.temporal_patch_size
        self._side = self._patch * self._merge
        self._normal = Normal.read(settings, _HALF, _HALF)
        size = settings.get("size") or {}
        least = settings.get("min_pixels") or size.get("shortest_edge") or 56 * 56
        most = settings.get("max_pixels") or size.get("longest_edge") or 28 * 28 * 1280
        self._pixels = least, min(most, MAX_IMAGE_TOKENS * self._side**2)

    def limit(self, num_patches: int) -> None:
        least, most = self._pixels
        most = max(self._side**2, min(most, num_patches * self._patch**2))
        self._pixels = min(least, most), most

    def fit(self, picture: Image.Image) -> FittedPicture:
        rows, columns = self._grid(picture.height, picture.width)
        size = (columns * self._side, rows * self._side)
        scaled = picture.resize(size, Image.Resampling.BICUBIC)
        count = rows * columns
        return FittedPicture(np.asarray(scaled), self.mark * count, count, (rows, columns))

    def encode(self, pixels: mx.array) -> mx.array:
        rows, columns = (size // self._patch for size in pixels.shape[1:3])
        patches = self._patches(self._normal(pixels)[0], rows, columns)
        tower = self.tower.vision_tower
        patches = patches.astype(tower.patch_embed.proj.weight.dtype)
        found = tower(patches, mx.array([[1, rows, columns]]))
        if self._is_deep:
            return mx.stack([found[0], *found[1]])
        return found[None]

    def weight_name(self, name: str) -> str:
        return (
            "vision_tower." + name.removeprefix("visual.") if name.startswith("visual.") else name
        )

    def arguments(self, token_ids: mx.array) -> dict[str, mx.array]:
        return {}

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tokens: the nearest that keep the shape and the limits."""
        side, (least, most) = self._side, self._pixels
        rows, columns = round(height / side), round(width / side)
        scale = math.sqrt(height * width)
        if rows * columns * side**2 > most:
            scale = math.sqrt(most) / scale / side
            return max(1, math.floor(height * scale)), max(1, math.floor(width * scale))
        if rows * columns * side**2 < least:
            scale = math.sqrt(least) / scale / side
            return math.ceil(height * scale), math.ceil(width * scale)
        return rows, columns

    def _patches(self, picture: mx.array, rows: int, columns: int) -> mx.array:
        """(H, W, 3) to one row per patch, the patches of one token together; an image is a film of
        equal frames."""
        p, m = self._patch, self._merge
        split = picture.reshape(rows // m, m, p, columns // m, m, p, 3)
        together = split.transpose(0, 3, 1, 4, 6, 2, 5)  # blocks, patches in one, (3, p, p)
        frames = mx.repeat(together[:, :, :, :, :, None], self._frames, axis=5)
        return frames.reshape(rows * columns, -1)
