"""Small edits of other programs' configuration files, which keep what people wrote there.

JSON is merged. TOML and YAML get blocks between two marks: neither format's writers in the
standard library keep comments. What cannot be edited safely raises `Unsafe`, and the caller prints
the text for a person to paste.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any  # JSON values

BEGIN = "# >>> swiftlm >>>"
END = "# <<< swiftlm <<<"


class Unsafe(Exception):
    """This file is not for a program to edit; the message says why."""


def merged_json(text: str, changes: dict[str, Any]) -> str:
    """`text` with `changes` laid over it, object by object."""
    try:
        found = json.loads(text or "{}")
    except ValueError as e:
        # Comments are allowed by several of these programs, and would be lost.
        raise Unsafe("it is not plain JSON (comments?)") from e
    if not isinstance(found, dict):
        raise Unsafe("it does not hold an object")
    return json.dumps(_merged(found, changes), indent=2, ensure_ascii=False) + "\n"


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        both = isinstance(value, dict) and isinstance(under, dict)
        result[key] = _merged(under, value) if both and under is not None else value
    return result


def toml_with(text: str, top: dict[str, str], tables: str) -> str:
    """`text` with plain keys at its top and whole tables at its end, in marked blocks.

    A key that the file sets itself is commented out: TOML allows no second one.
    """
    _check_toml(text)
    rest = without_blocks(text)
    for key in top:
        rest = re.sub(rf"(?m)\A((?:(?!^\[)[^\n]*\n)*?)({key}\s*=)", r"\1# \2", rest, count=1)
    head = _block("\n".join(f"{key} = {json.dumps(value)}" for key, value in top.items()))
    result = f"{head}\n{rest.rstrip()}\n\n{_block(tables)}".lstrip()
    _check_toml(result)
    return result


def _check_toml(text: str) -> None:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise Unsafe(f"it is not sound TOML ({e})") from e


def yaml_with(text: str, keys: dict[str, str]) -> str:
    """`text` with plain top-level keys in a marked block; refuses keys that are already there."""
    rest = without_blocks(text)
    for key in keys:
        if re.search(rf"(?m)^{re.escape(key)}\s*:", rest):
            raise Unsafe(f"it already sets {key}")
    lines = "\n".join(f"{key}: {json.dumps(value)}" for key, value in keys.items())
    return f"{rest.rstrip()}\n\n{_block(lines)}".lstrip()


def without_blocks(text: str) -> str:
    return re.sub(rf"(?ms)^{re.escape(BEGIN)}$.*?^{re.escape(END)}$\n?", "", text)


def _block(lines: str) -> str:
    return f"{BEGIN}\n{lines.strip()}\n{END}\n"
