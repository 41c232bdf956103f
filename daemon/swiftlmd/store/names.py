"""What a user may call a model: a built-in, a repository of the hub, or a folder."""

from __future__ import annotations

import re
from dataclasses import dataclass

from swiftlmd.store import catalogue
from swiftlmd.store.errors import BadModelName

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_REVISION = re.compile(r"[\w][\w./-]*")
_ADDRESSES = ("https://huggingface.co/", "hf.co/", "huggingface.co/")
_MAX_LENGTH = 96  # the hub's own limit
DEFAULT_REVISION = "main"


@dataclass(frozen=True, slots=True)
class HubName:
    repo: str
    revision: str  # empty: none was asked for


def hub_name(name: str, revision: str = "") -> HubName:
    """`ORG/NAME`, `ORG/NAME@REVISION` or its web address; raises BadModelName."""
    name = catalogue.repo_of(name) or name
    text = next((name.removeprefix(a) for a in _ADDRESSES if name.startswith(a)), name)
    repo, _, stated = text.partition("@")
    chosen = revision or stated
    if not _REPO.fullmatch(repo) or len(repo) > _MAX_LENGTH or ".." in repo or "--" in repo:
        raise BadModelName(
            f"'{name}' is neither a local model nor a hub name; write ORG/NAME, for example "
            "mlx-community/Qwen3-4B-4bit, or the path of a folder"
        )
    if (chosen and not _REVISION.fullmatch(chosen)) or ".." in chosen:
        raise BadModelName(f"'{chosen}' is not the name of a revision")
    return HubName(repo, chosen)


def is_hub_name(name: str) -> bool:
    """Whether the hub could have it: `ORG/NAME`, or a short name of the catalogue."""
    try:
        hub_name(name)
    except BadModelName:
        return False
    return True


def is_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~"))
