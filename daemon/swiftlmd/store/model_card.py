"""A model's card (README.md): its first lines state the licence in a form made for programs."""

from __future__ import annotations

import re
from pathlib import Path

from swiftlm_engine.brain.facts import ModelFilesError, open_regular

_HEAD_BYTES = 64_000
_FENCE = "---"
_LICENCE = re.compile(r"(license|license_name):\s*(.+)")
_UNNAMED = "other"  # then `license_name` says which


def licence(folder: Path) -> str:
    """As the makers write it (`apache-2.0`), or nothing where there is no card."""
    try:
        with open_regular(folder / "README.md") as file:
            lines = file.read(_HEAD_BYTES).decode(errors="replace").splitlines()
    except (OSError, ModelFilesError):
        return ""
    if not lines or lines[0].strip() != _FENCE:
        return ""
    found: dict[str, str] = {}
    for line in lines[1:]:
        if line.strip() == _FENCE:
            break
        if match := _LICENCE.fullmatch(line.rstrip()):
            found[match[1]] = match[2].strip("'\"")
    stated = found.get("license", "")
    return found.get("license_name", stated) if stated == _UNNAMED else stated
