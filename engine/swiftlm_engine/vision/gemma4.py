"""Gemma 4 E2B and E4B: a picture keeps its shape and becomes up to 280 tokens.

The larger ones let the tokens of a picture see each other, which mlx-lm's Gemma 4 cannot
(`brain/facts`); those are served as text.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from PIL import Image

from swiftlm_engine.vision.family import FittedPicture, Normal, Tower
from swiftlm_engine.vision.package import import_model
from swiftlm_engine.vision.placement import Placement

_NO_CHANGE = Normal((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
_HALF = (0.5, 0.5, 0.5)
_CLIPS = ("input_max", "input_min", "output_max", "output_min")


class Gemma4:
    placement: Placement | None = None

    def __init__(
        self, config: dict[str, Any], settings: dict[str, Any], tokenizer: Any, text: Any
    ) -> None:
        hidden_size = config["text_config"]["hidden_size"]
        vision = import_model("gemma4").VisionConfig.from_dict(config["vision_config"])
        embedder = import_model("gemma4.gemma4").MultimodalEmbedder
        self.tower = Tower(
            vision_tower=import_model("gemma4.vision").VisionModel(vision),
            embed_vision=embedder(vision.hidden_size, hidden_size, vision.rms_norm_eps),
        )
        self._text = text
        # The language model multiplies what it is given by this.
        self._scale = hidden_size**0.5
        self._side = vision.patch_size * vision.pooling_kernel_size
        self._pooled = vision.pooling_kernel_size**2
        self._most = settings.get("max_soft_tokens", vision.default_output_length)
        self._normal = _NO_CHANGE
        if settings.get("do_normalize"):
            self._normal = Normal.read(settings, _HALF, _HALF)
        self._clips = vision.use_clipped_linears
        ids = SimpleNamespace(**config)
        self.image_token_id = ids.image_token_id
        begin, self.mark, end = tokenizer.convert_ids_to_tokens(
            [ids.boi_token_id, ids.image_token_id, ids.eoi_token_id]
        )
        self._ends = begin, end

    def limit(self, num_patches: int) -> None:
        self._most = min(self._most, max(1, num_patches // self._pooled))

    def fit(self, picture: Image.Image) -> FittedPicture:
        rows, columns = self._grid(picture.height, picture.width)
        size = (columns * self._side, rows * self._side)
        scaled = picture.resize(size, Image.Resampling.BICUBIC)
        begin, end = self._ends
        count = rows * columns
        return FittedPicture(np.asarray(scaled), f"{begin}{self.mark * count}{end}", count)

    def encode(self, pixels: mx.array) -> mx.array:
        dtype = tree_flatten(self.tower.embed_vision.parameters())[0][1].dtype
        normal = self._normal(pixels).astype(dtype).transpose(0, 3, 1, 2)
        return self.tower.embed_vision(self.tower.vision_tower(normal)) / self._scale

    def weight_name(self, name: str) -> str:
        """Nothing, where a checkpoint has limits that its model does not use."""
        return "" if not self._clips and name.endswith(_CLIPS) else name

    def arguments(self, token_ids: mx.array) -> dict[str, mx.array]:
        """Its layers look tokens up a second time; image tokens count as padding there."""
        if not self._text.hidden_size_per_layer_input:
            return {}
        ids = mx.where(token_ids == self.image_token_id, 0, token_ids)
        return {"per_layer_inputs": self._text._get_per_layer_inputs(ids)}

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tokens: as many as may be, in the picture's shape."""
        factor = math.sqrt(self._most * self._side**2 / (height * width)) / self._side
        rows, columns = math.floor(factor * height), math.floor(factor * width)
        if rows == 0:
            return 1, min(width // height, self._most)
        if columns == 0:
            return min(height // width, self._most), 1
        return rows, columns
