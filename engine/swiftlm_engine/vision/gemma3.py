"""Gemma 3: every picture becomes a square of one size, and 256 tokens.

Image tokens are read causally here, as mlx-lm's and mlx-vlm's Gemma 3 read them; the original lets
the tokens of one picture see each other.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
from PIL import Image

from swiftlm_engine.vision.family import FittedPicture, Normal, Tower
from swiftlm_engine.vision.package import import_model
from swiftlm_engine.vision.placement import Placement

_HALF = (0.5, 0.5, 0.5)


class Gemma3:
    placement: Placement | None = None

    def __init__(self, config: dict[str, Any], settings: dict[str, Any], tokenizer: Any) -> None:
        text = config["text_config"]
        vision = import_model("gemma3").VisionConfig.from_dict(config["vision_config"])
        tokens = config.get("mm_tokens_per_image") or text.get("mm_tokens_per_image") or 256
        names = SimpleNamespace(
            vision_config=vision,
            text_config=SimpleNamespace(
                hidden_size=text["hidden_size"], mm_tokens_per_image=tokens
            ),
        )
        model = import_model("gemma3.gemma3")
        self.tower = Tower(
            vision_tower=import_model("gemma3.vision").VisionModel(vision),
            multi_modal_projector=model.Gemma3MultiModalProjector(names),
        )
        self.image_token_id = config.get("image_token_index", 262144)
        self._side = vision.image_size
        self._num_tokens = tokens
        # The language model multiplies what it is given by this.
        self._scale = text["hidden_size"] ** 0.5
        self._normal = Normal.read(settings, _HALF, _HALF)
        begin, soft, end = tokenizer.convert_ids_to_tokens(
            [
                config.get("boi_token_index", 255999),
                self.image_token_id,
                config.get("eoi_token_index", 256000),
            ]
        )
        self.mark = begin
        self._text = f"\n\n{begin}{soft * tokens}{end}\n\n"

    def limit(self, num_patches: int) -> None:
        """Its pictures have one size."""

    def fit(self, picture: Image.Image) -> FittedPicture:
        square = picture.resize((self._side, self._side), Image.Resampling.BILINEAR)
        return FittedPicture(np.asarray(square), self._text, self._num_tokens)

    def encode(self, pixels: mx.array) -> mx.array:
        patches = self.tower.vision_tower.vision_model.embeddings.patch_embedding
        normal = self._normal(pixels).astype(patches.weight.dtype)
        hidden, _, _ = self.tower.vision_tower(normal, output_hidden_states=True)
        return self.tower.multi_modal_projector(hidden) / self._scale

    def weight_name(self, name: str) -> str:
        return name

    def arguments(self, token_ids: mx.array) -> dict[str, mx.array]:
        return {}
