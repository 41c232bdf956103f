"""What can be wrong with a model folder; each error names the file and the next step."""

from __future__ import annotations

from pathlib import Path


class ModelFilesError(Exception):
    """The folder cannot be loaded as it is. `path` is the file at fault."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path


class MissingFile(ModelFilesError):
    """A file that must be there is not (an unfinished download, a wrong folder)."""


class TruncatedFile(ModelFilesError):
    """A file ends before its header says it does."""


class LyingHeader(ModelFilesError):
    """A header or an index contradicts itself, the file, or config.json."""


class UnreadableFile(ModelFilesError):
    """The system does not let us read it."""


class BadConfig(ModelFilesError):
    """config.json is not JSON, lacks a key, or holds a value that no model can have."""
