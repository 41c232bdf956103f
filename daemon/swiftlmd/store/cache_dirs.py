"""Where other programs keep models: the Hugging Face cache, folders of LM Studio and SwiftLM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path


def hub_cache(environ: Mapping[str, str], home: Path) -> Path:
    """By the rules of the hub's own client, without importing it."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if value := environ.get(name):
            return _expanded(value, home)
    if value := environ.get("HF_HOME"):
        return _expanded(value, home) / "hub"
    general = environ.get("XDG_CACHE_HOME")
    base = _expanded(general, home) if general else home / ".cache"
    return base / "huggingface" / "hub"


def publisher_folders(home: Path) -> list[Path]:
    """Those that hold PUBLISHER/NAME: LM Studio's old and new place and the one chosen in its
    settings, and where SwiftLM put what it downloaded."""
    candidates = [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    candidates.append(home / "Library/Application Support/MLX/HuggingFace/models")
    for settings in (home / ".lmstudio", home / ".cache" / "lm-studio"):
        if chosen := _downloads_folder(settings / "settings.json"):
            candidates.append(_expanded(chosen, home))
    return [p for p in dict.fromkeys(candidates) if p.is_dir()]


def _downloads_folder(settings: Path) -> str:
    try:
        value = json.loads(settings.read_bytes()).get("downloadsFolder")
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""
    return value if isinstance(value, str) else ""


def _expanded(text: str, home: Path) -> Path:
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return Path(text)
