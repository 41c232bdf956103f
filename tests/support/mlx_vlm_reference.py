"""Greedy tokens as mlx-vlm itself generates them: its model, its processor, its loop."""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer

from swiftlm_engine.vision.package import import_model

_PROCESSORS = {
    "mistral3": "Mistral3Processor",
    "pixtral": "PixtralProcessor",
    "qwen2_vl": "Qwen2VLProcessor",
    "qwen2_5_vl": "Qwen2_5_VLProcessor",
}
_GEMMA_TOKENS = {
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>",
}


class MlxVlm:
    def __init__(self, name: str, folder: Path) -> None:
        import_model("base")  # its package is not imported whole, as in the engine
        utils = importlib.import_module("mlx_vlm.utils")
        self._generate = importlib.import_module("mlx_vlm.generate.ar").generate_step
        self._model = utils.load_model(folder)
        self._processor = _processor(name, folder)

    def greedy(self, text: str, pictures: Sequence[bytes], num_tokens: int) -> list[int]:
        images = [Image.open(io.BytesIO(content)) for content in pictures]
        inputs = dict(self._processor(images=images, text=text))
        ids, mask = mx.array(inputs.pop("input_ids")), mx.array(inputs.pop("attention_mask"))
        pixels = inputs.pop("pixel_values")
        pixels = list(map(mx.array, pixels)) if isinstance(pixels, list) else mx.array(pixels)
        steps = self._generate(
            ids, self._model, pixels, mask, max_tokens=num_tokens, temperature=0.0, **inputs
        )
        return [int(token) for (token, _), _ in zip(steps, range(num_tokens), strict=False)]


def _processor(name: str, folder: Path) -> Any:  # Any: mlx-vlm is untyped here
    home = "qwen3_vl" if name.startswith("qwen3") else name
    module = importlib.import_module(f"mlx_vlm.models.{home}.processing_{home}")
    if name == "gemma4":
        return _gemma4(module, folder)
    if name != "gemma3":
        processor = getattr(module, _PROCESSORS.get(name, "Qwen3VLProcessor"))
        return processor.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for attribute, token in _GEMMA_TOKENS.items():
        setattr(tokenizer, attribute, token)
    tokenizer.image_token_id = tokenizer.convert_tokens_to_ids(tokenizer.image_token)
    pictures = AutoImageProcessor.from_pretrained(folder, backend="pil")
    return module.Gemma3Processor(pictures, tokenizer, image_seq_length=16)


def _gemma4(module: Any, folder: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.boi_token, tokenizer.image_token, tokenizer.eoi_token = (
        "<|image>",
        "<|image|>",
        "<image|>",
    )
    tokenizer.image_token_id = tokenizer.convert_tokens_to_ids(tokenizer.image_token)
    settings = json.loads((folder / "processor_config.json").read_text())["image_processor"]
    return module.Gemma4Processor(module.Gemma4ImageProcessor(**settings), tokenizer)
