"""The words the store speaks in: what lies on disk, how a pull goes, what a removal freed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class ModelSource(StrEnum):
    """Who put a model here, and so how it is removed."""

    BUILT_IN = "built-in"  # the embedded model, in the models folder
    IMPORTED = "imported"  # made from a GGUF file or by `convert`, in the models folder
    HUB = "hub"  # in the Hugging Face cache, shared with other programs
    LOCAL = "local"  # a folder of the user's; never deleted


class Stage(StrEnum):
    QUEUED = "queued"
    RESOLVE = "resolve"
    DOWNLOAD = "download"
    VERIFY = "verify"
    CONVERT = "convert"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class StoredModel:
    name: str
    path: Path
    source: ModelSource
    size_bytes: int
    ready: bool
    reason: str  # why it is not ready
    model_type: str
    context: int
    quantization: str  # "4-bit g32", "float16", ...
    vision: bool
    tools: bool = False  # its chat template takes tools
    reasoning: bool = False  # its chat template knows thoughts
    licence: str = ""  # as its makers state it
    revision: str = ""  # the commit, for models of a hub


@dataclass(frozen=True, slots=True)
class PullProgress:
    """One report. Within a stage `done_bytes` never falls and never passes `total_bytes`."""

    stage: Stage
    done_bytes: int = 0
    total_bytes: int = 0
    bytes_per_s: float = 0.0
    eta_s: float = 0.0
    detail: str = ""
    model: str = ""  # with DONE: the name it is listed under now


@dataclass(frozen=True, slots=True)
class RemovedModel:
    freed_bytes: int
    paths: tuple[Path, ...]
