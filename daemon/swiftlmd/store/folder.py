"""Whether a folder holds a whole model, told from names, sizes and headers; no weight is read.

A model is listed as ready only after this, so a half-finished download is a reason to show and
never a crash in the loader. The reading itself is the planner's (`swiftlm_engine.brain.facts`).
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swiftlm_engine.brain import vision
from swiftlm_engine.brain.facts import (
    MissingFile,
    ModelFacts,
    ModelFilesError,
    read_bounded,
    read_model,
    weight_files,
)
from swiftlm_engine.brain.thoughts import knows_thoughts
from swiftlmd.store import model_card, supported

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "tiktoken.model")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_MAX_TEMPLATE_BYTES = 4 << 20
_MAX_SETTINGS_BYTES = 32 << 20
_MAX_FILES = 20_000
_MAX_TEXT = 1000


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
    reasoning: bool = False
    licence: str = ""


def inspect(folder: Path, *roots: Path) -> Inspection:
    """Never raises for a bad folder: the reason is part of the answer.

    `roots` are the folders that links may point into: the model's own, or the cache it lies in.
    """
    try:
        found = _inspected(folder, roots)
    except Exception as error:  # whatever a stranger's folder does to us is that folder's reason
        found = unreadable(folder, error)
    return dataclasses.replace(
        found,
        reason=plain(found.reason),
        model_type=plain(found.model_type),
        quantization=plain(found.quantization),
        licence=plain(found.licence),
    )


def unreadable(folder: Path, error: Exception) -> Inspection:
    """Of a folder that could not even be looked at."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
    return Inspection(0, plain(f"{folder} cannot be read: {why}"))


def plain(text: str) -> str:
    """Text out of a folder as it can be sent and shown: valid Unicode, of a bounded length."""
    short = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
    return short.encode("utf-8", "backslashreplace").decode("utf-8")


def _inspected(folder: Path, roots: Sequence[Path]) -> Inspection:
    size = folder_bytes(folder)
    if outside := escaping_link(folder, roots):
        where = " or ".join(map(str, roots[:1]))
        return Inspection(size, f"{outside} is a link that leads out of {where}; not followed")
    try:
        facts = read_model(folder)
    except ModelFilesError as error:
        return Inspection(size, _explained(folder, error))
    template = _chat_template(folder)
    return Inspection(
        size,
        _reason(folder, facts),
        model_type=facts.model_type,
        context=facts.max_context or 0,
        quantization=facts.quantisation.describe() if facts.quantisation.default else facts.dtype,
        vision=facts.reads_images and vision.is_installed(),
        tools="tools" in template,
        reasoning=knows_thoughts(template),
        licence=model_card.licence(folder),
    )


def folder_bytes(folder: Path) -> int:
    """Sizes of the folder's files, links followed."""
    return sum(size for _, size, _ in signature(folder))


def signature(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of the folder's files: an inspection holds as long as this does.

    Raises OSError for a folder that cannot be listed, or that lists more than any model has.
    """
    found: list[tuple[str, int, int]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if len(found) > _MAX_FILES:
                raise OSError(errno.EFBIG, f"it holds more than {_MAX_FILES:,} files")
            try:
                if entry.is_file():
                    stat = entry.stat()
                    found.append((entry.name, stat.st_size, stat.st_mtime_ns))
                elif entry.is_symlink():
                    found.append((entry.name, 0, 0))  # points to a blob that is not there yet
            except OSError:
                found.append((entry.name, 0, 0))
    return tuple(sorted(found))


def escaping_link(folder: Path, roots: Sequence[Path]) -> str:
    """The name of a link that leads outside all `roots`, or nothing."""
    homes = [root.resolve() for root in roots]
    with os.scandir(folder) as entries:
        links = [entry.name for entry in entries if entry.is_symlink()]
    for name in links:
        target = (folder / name).resolve()
        if not any(target.is_relative_to(home) for home in homes):
            return name
    return ""


def has_gguf(folder: Path) -> bool:
    return bool(weight_files(folder, "*.gguf"))


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
        return "model_file" in json.loads(read_bounded(folder / "config.json", _MAX_SETTINGS_BYTES))
    except (OSError, ValueError, TypeError, ModelFilesError):
        return False


def _explained(folder: Path, error: ModelFilesError) -> str:
    """The planner's words, or better ones where the folder shows what it is instead."""
    if not isinstance(error, MissingFile):
        return str(error)
    try:
        names = [p.name for p in folder.iterdir() if not p.name.startswith(".")]
    except OSError:
        return str(error)
    if any(name.endswith(".safetensors") for name in names):
        return str(error)
    if any(name.endswith(".gguf") for name in names):
        return f"holds GGUF files; make a model of one with `swiftlmctl import {folder}/NAME.gguf`"
    if any(name.endswith(_PICKLES) for name in names):
        return "holds pickled weights only; swiftlm loads safetensors and nothing else"
    return str(error)


def _chat_template(folder: Path) -> str:
    """All its variants; empty where there is none. That it names `tools` is right of every
    published template."""
    template = folder / "chat_template.jinja"
    try:
        return read_bounded(template, _MAX_TEMPLATE_BYTES).decode("utf-8", "replace")
    except (OSError, ModelFilesError):
        pass  # older folders keep the template in the tokenizer's settings
    try:
        raw = json.loads(read_bounded(folder / "tokenizer_config.json", _MAX_SETTINGS_BYTES))
        found = raw.get("chat_template") or ""
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    except (OSError, ValueError, AttributeError, RecursionError, ModelFilesError):
        return ""


_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")
_TOLD = ("tokenizer_class", "model_max_length", "add_bos_token", "add_eos_token")


def read_tokenizer(folder: Path) -> dict[str, object]:
    """What a client has to know of a model's tokenizer; empty where its settings are unreadable."""
    found: dict[str, object] = {"chat_template": _chat_template(folder)}
    try:
        raw = json.loads(read_bounded(folder / "tokenizer_config.json", _MAX_SETTINGS_BYTES))
    except (OSError, ValueError, RecursionError, ModelFilesError):
        return found
    settings = raw if isinstance(raw, dict) else {}
    for name in _SPECIAL:
        token = settings.get(name)
        found[name] = token.get("content") if isinstance(token, dict) else token
    return found | {name: settings[name] for name in _TOLD if name in settings}
