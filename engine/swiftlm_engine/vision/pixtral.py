"""Pixtral's tower, alone and in Mistral 3, which merges neighbouring patches.

A picture keeps its shape: it is scaled to whole patches, and becomes a grid of tokens with a token
at the end of each row.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
from PIL import Image

from swiftlm_engine.vision.family import FittedPicture, Normal, Tower
from swiftlm_engine.vision.package import import_model
from swiftlm_engine.vision.placement import Placement

_MEAN = (0.48145466, 0.4578275, 0.40821073)
_STD = (0.26862954, 0.26130258, 0.27577711)
_TOWER = "vision_tower."
_INNER = "vision_tower.vision_model."


class Pixtral:
    placement: Placement | None = None

    def __init__(self, config: dict[str, Any], settings: dict[str, Any], tokenizer: Any) -> None:
        self._vision = import_model("pixtral").VisionConfig.from_dict(config["vision_config"])
        self._layer = config.get("vision_feature_layer", -1)
        merges = config["model_type"] == "mistral3"
        merge = config.get("spatial_merge_size", 2) if merges else 1
        self._merges = merges
        self._patch = self._vision.patch_size * merge
        self._longest = _longest_edge(settings, self._vision.image_size)
        self._normal = Normal.read(settings, _MEAN, _STD)
        self.image_token_id = config.get("image_token_index") or config.get("image_token_id", 10)
        self._row_end, self._end = "[IMG_BREAK]", "[IMG_END]"
        self.mark = tokenizer.convert_ids_to_tokens(self.image_token_id)
        self.tower = Tower(
            vision_tower=import_model("pixtral").VisionModel(self._vision),
            multi_modal_projector=self._projector(config, merge),
        )

    def limit(self, num_patches: int) -> None:
        side = math.isqrt(num_patches) * self._vision.patch_size
        self._longest = min(self._longest, max(self._patch, side // self._patch * self._patch))

    def fit(self, picture: Image.Image) -> FittedPicture:
        rows, columns = self._grid(picture.height, picture.width)
        size = (columns * self._patch, rows * self._patch)
        scaled = picture.resize(size, Image.Resampling.BICUBIC)
        text = self._row_end.join([self.mark * columns] * rows) + self._end
        return FittedPicture(np.asarray(scaled), text, rows * columns)

    def encode(self, pixels: mx.array) -> mx.array:
        size = [(pixels.shape[1], pixels.shape[2])]
        _, states = self.tower.vision_tower(
            self._normal(pixels), output_hidden_states=True, image_sizes=size
        )
        hidden = states[self._layer]
        if self._merges:
            return self.tower.multi_modal_projector(hidden[0], size)[None]
        return self.tower.multi_modal_projector(hidden)

    def weight_name(self, name: str) -> str:
        """Checkpoints differ in whether they name the inner model."""
        if name.startswith(_TOWER) and not name.startswith(_INNER):
            return _INNER + name.removeprefix(_TOWER)
        return name

    def arguments(self, token_ids: mx.array) -> dict[str, mx.array]:
        return {}

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tokens."""
        ratio = max(height, width) / self._longest
        if ratio > 1:
            height, width = math.floor(height / ratio), math.floor(width / ratio)
        return -(-max(1, height) // self._patch), -(-max(1, width) // self._patch)

    def _projector(self, config: dict[str, Any], merge: int) -> Any:
        text = config["text_config"]
        names = SimpleNamespace(
            vision_config=self._vision,
            text_config=SimpleNamespace(
                hidden_size=text.get("hidden_size", 5120),
                rms_norm_eps=text.get("rms_norm_eps", 1e-5),
            ),
            vision_feature_layer=self._layer,
            spatial_merge_size=merge,
            multimodal_projector_bias=config.get("multimodal_projector_bias", False),
        )
        if self._merges:
            return import_model("mistral3.mistral3").Mistral3MultiModalProjector(names)
        return import_model("pixtral.pixtral").LlavaMultiModalProjector(names)


def _longest_edge(settings: dict[str, Any], tower_side: int) -> int:
    """The tower knows positions up to its own side only."""
    size = settings.get("size") or {}
    edge = size.get("longest_edge") if isinstance(size, dict) else size
    return min(edge or tower_side, tower_side)
