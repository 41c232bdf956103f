"""Loads the image tower beside a language model, or says why images are refused."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn

from swiftlm_engine.brain import vision
from swiftlm_engine.brain.facts import ModelFacts, weight_files
from swiftlm_engine.brain.plan.image_scratch import max_patches
from swiftlm_engine.brain.plan.machine import Accelerator
from swiftlm_engine.load.device import find_device
from swiftlm_engine.load.weights import LoadedWeights

if TYPE_CHECKING:
    from swiftlm_engine.vision.family import Tower, VisionFamily
    from swiftlm_engine.vision.reader import ImageReader

log = logging.getLogger(__name__)

_PARTS = ("vision_tower.", "multi_modal_projector.", "embed_vision.")
_ASK_ANOTHER = "remove the image, or ask a model that /v1/models lists with `vision: true`"


# What a checkpoint that is not as its family's are makes of these steps.
_BROKEN = (ValueError, KeyError, TypeError, AttributeError, OSError, RuntimeError)


@dataclass(frozen=True, slots=True)
class ImageSupport:
    """`reader` is None where the model reads no images, and `refusal` says why."""

    reader: ImageReader | None = None
    refusal: str = ""


def open_images(
    model: str, facts: ModelFacts, loaded: LoadedWeights, *, is_split: bool
) -> ImageSupport:
    """A tower that cannot be loaded costs the model its images, not its text."""
    reason = _refusal(model, facts, is_split=is_split)
    if reason:
        return ImageSupport(refusal=reason)
    try:
        return ImageSupport(_load_reader(facts, loaded))
    except _BROKEN as error:
        log.warning("model %s is served as text only: its image tower: %s", model, error)
        reason = f"model '{model}' is loaded as text only, its image tower is broken: {error}"
        return ImageSupport(refusal=reason)


def _refusal(model: str, facts: ModelFacts, *, is_split: bool) -> str:
    """Why this model reads no images and what to do; empty when it does read them."""
    if not facts.vision:
        return f"model '{model}' reads text only; {_ASK_ANOTHER}"
    if facts.mutual_images:
        return (
            f"model '{model}' is served as text only: the tokens of a picture see each other in "
            f"it, which is not done here; {_ASK_ANOTHER}"
        )
    if not facts.reads_images:
        known = ", ".join(vision.FAMILIES)
        return (
            f"model '{model}' is served as text only: of {facts.outer_type} no images are read "
            f"here, but of {known}; {_ASK_ANOTHER}"
        )
    if is_split:
        return f"model '{model}' is split over several machines, which read text only"
    if not vision.is_installed():
        packages = " ".join(f"'{one}'" for one in vision.REQUIREMENTS)
        return (
            f"model '{model}' is loaded as text only: the extra `vision` is not installed; run "
            f"`{sys.executable} -m pip install --no-deps {packages}`, then "
            f"`swiftlmctl unload {model}`"
        )
    return ""


def _load_reader(facts: ModelFacts, loaded: LoadedWeights) -> ImageReader:
    """The tower's weights, evaluated."""
    # Imported here: without the extra this module cannot be.
    from swiftlm_engine.vision.reader import ImageReader

    embed_tokens = loaded.model.language_model.model.embed_tokens
    dtype = embed_tokens(mx.array([0])).dtype
    folder = facts.path
    family = _make(loaded, _settings(folder))
    if facts.tower is not None:
        accelerator = Accelerator(find_device())
        family.limit(max_patches(facts.tower, accelerator, dtype.size))
    tower = family.tower
    weights = tower.vision_tower.sanitize(_tower_weights(folder, family.weight_name))
    _quantize(tower, weights, loaded.config.get("quantization") or {})
    tower.load_weights(list(weights.items()), strict=True)
    tower.set_dtype(dtype)
    tower.eval()
    mx.eval(tower.parameters())
    return ImageReader(family, embed_tokens)


def _make(loaded: LoadedWeights, settings: dict[str, Any]) -> VisionFamily:
    from swiftlm_engine.vision.gemma3 import Gemma3
    from swiftlm_engine.vision.gemma4 import Gemma4
    from swiftlm_engine.vision.pixtral import Pixtral
    from swiftlm_engine.vision.qwen_vl import QwenVl

    config, tokenizer = loaded.config, loaded.tokenizer
    if config["model_type"].startswith("qwen"):
        layers = loaded.model.language_model.model.layers
        return QwenVl(config, settings, tokenizer, layers)
    if config["model_type"] == "gemma4":
        return Gemma4(config, settings, tokenizer, loaded.model.language_model.model)
    if config["model_type"] == "gemma3":
        return Gemma3(config, settings, tokenizer)
    return Pixtral(config, settings, tokenizer)


def _settings(folder: Path) -> dict[str, Any]:
    """What the folder says about preparing pictures; older and newer folders keep it apart."""
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            found = json.loads((folder / name).read_text())
            return found.get("image_processor") or found
    return {}


def _tower_weights(folder: Path, rename: Callable[[str], str]) -> dict[str, mx.array]:
    found = {}
    for file in weight_files(folder, "model*.safetensors"):
        for name, array in mx.load(str(file)).items():
            bare = rename(name.removeprefix("model."))
            if bare.startswith(_PARTS):
                found[bare] = array
    return found


def _quantize(tower: Tower, weights: dict[str, mx.array], quantization: dict[str, Any]) -> None:
    """Only what lies quantised in the file; most checkpoints leave their tower alone."""
    if not any(name.endswith(".scales") for name in weights):
        return

    def choose(path: str, module: nn.Module) -> bool | dict[str, Any]:
        if not hasattr(module, "to_quantized") or f"{path}.scales" not in weights:
            return False
        return quantization.get(path, True)

    nn.quantize(
        tower,
        group_size=quantization.get("group_size", 64),
        bits=quantization.get("bits", 4),
        mode=quantization.get("mode", "affine"),
        class_predicate=choose,
    )
