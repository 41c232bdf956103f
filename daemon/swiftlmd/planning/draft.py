"""Which model drafts for another: what `engine.draft` names, as the engine is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from swiftlmd.faults import Kind, ServiceError
from swiftlmd.store.names import is_path
from swiftlmd.store.types import StoredModel

FindModel = Callable[[str], Awaitable[StoredModel | None]]

_NO_MODEL = ("", "off", "ngram")


async def draft_source(asked: str, find: FindModel) -> str:
    """The folder of the model that `asked` names, by its name or its path; a word that names none
    stays as it is. Raises ServiceError for a model that is not here, or not whole."""
    if asked in _NO_MODEL:
        return asked
    if is_path(asked):
        folder = await asyncio.to_thread(_folder, asked)
        if folder is None:
            raise _unusable(asked, "the folder holds no model")
        return str(folder)
    found = await find(asked)
    if found is None:
        raise _unusable(asked, f"it is not here; fetch it with `swiftlmctl pull {asked}`")
    if not found.ready:
        raise _unusable(asked, found.reason)
    return str(found.path)


def _folder(asked: str) -> Path | None:
    folder = Path(asked).expanduser()
    return folder if (folder / "config.json").is_file() else None


def _unusable(asked: str, reason: str) -> ServiceError:
    message = f"draft model '{asked}' cannot be used: {reason}"
    return ServiceError(Kind.MODEL_BROKEN, message, param="draft")
