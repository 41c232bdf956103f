"""Whether a folder holds a whole model, told from names, sizes and headers; no weight is read.

A model is listed as ready only after this, so a half-finished download is a reason to show and
never a crash in the loader. The reading itself is the planner's (`swiftlm_engine.brain.facts`).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from swiftlm_engine.brain import vision
from swiftlm_engine.brain.facts import MissingFile, ModelFacts, ModelFilesError, read_model
from swiftlmd.store import model_card, supported

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "tiktoken.model")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_MAX_TEMPLATE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a listing shows of one folder."""

    size_bytes: int
    reason: str  # empty: complete and of a known family
    model_type: str = ""
    context: int = 0
    quantization: str = ""
    vision: bool = False
    tools: bool = False
    licence: str = ""


def inspect(folder: Path, root: Path) -> Inspection:
    """Never raises for a bad folder: the reason is part of the answer.

    `root` is the folder that links may point into: the model's own, or the cache it lies in.
    """
    size = folder_bytes(folder)
    if outside := escaping_link(folder, root):
        return Inspection(size, f"{outside} is a link that leads out of {root}; not followed")
    try:
        facts = read_model(folder)
    except ModelFilesError as error:
        return Inspection(size, _explained(folder, error))
    except OSError as error:
        return Inspection(size, f"{folder} cannot be read: {error.strerror}")
    return Inspection(
        size,
        _reason(folder, facts),
        model_type=facts.model_type,
        context=facts.max_context or 0,
        quantization=facts.quantisation.describe() if facts.quantisation.default else facts.dtype,
        vision=facts.reads_images and vision.is_installed(),
        tools=_takes_tools(folder),
        licence=model_card.licence(folder),
    )


def folder_bytes(folder: Path) -> int:
    """Sizes of the folder's files, links followed."""
    return sum(size for _, size, _ in signature(folder))


def signature(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of the folder's files: an inspection holds as long as this does."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file():
                    stat = entry.stat()
                    found.append((entry.name, stat.st_size, stat.st_mtime_ns))
                elif entry.is_symlink():
                    found.append((entry.name, 0, 0))  # points to a blob that is not there yet
    except OSError:
        return ()
    return tuple(sorted(found))


def escaping_link(folder: Path, root: Path) -> str:
    """The name of a link that leads outside `root`, or nothing."""
    home = root.resolve()
    try:
        links = [p for p in folder.iterdir() if p.is_symlink()]
    except OSError:
        return ""
    return next((p.name for p in links if not p.resolve().is_relative_to(home)), "")


def has_gguf(folder: Path) -> bool:
    return next(folder.glob("*.gguf"), None) is not None


def _reason(folder: Path, facts: ModelFacts) -> str:
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        return f"no tokenizer in {folder}; looked for {', '.join(_TOKENIZERS)}"
    if not supported.is_known(facts.model_type):
        return f"model type '{facts.model_type}' is not one that swiftlm runs"
    if _wants_code(folder):
        return "its config.json asks to run a Python file of its own; swiftlm never does that"
    return ""


def _wants_code(folder: Path) -> bool:
    """mlx-lm would load the class from this file where remote code is trusted: never here."""
    try:
        return "model_file" in json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, TypeError):
        return False


def _explained(folder: Path, error: ModelFilesError) -> str:
    """The planner's words, or better ones where the folder shows what it is instead."""
    if not isinstance(error, MissingFile):
        return str(error)
    try:
        names = [p.name for p in folder.iterdir()]
    except OSError:
        return str(error)
    if any(name.endswith(".safetensors") for name in names):
        return str(error)
    if any(name.endswith(".gguf") for name in names):
        return f"holds GGUF files; make a model of one with `swiftlmctl import {folder}/NAME.gguf`"
    if any(name.endswith(_PICKLES) for name in names):
        return "holds pickled weights only; swiftlm loads safetensors and nothing else"
    return str(error)


def _takes_tools(folder: Path) -> bool:
    """The chat template reads `tools`; cheap and right for every published template."""
    template = folder / "chat_template.jinja"
    try:
        if template.stat().st_size < _MAX_TEMPLATE_BYTES:
            return "tools" in template.read_text(encoding="utf-8", errors="replace")
    except OSError:
        pass  # older folders keep the template in the tokenizer's settings
    try:
        raw = json.loads((folder / "tokenizer_config.json").read_bytes())
        return "tools" in json.dumps(raw.get("chat_template") or "")
    except (OSError, ValueError, AttributeError, RecursionError):
        return False
