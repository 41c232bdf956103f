"""What the store must be told; every value comes from the configuration or the tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StoreOptions:
    offline: bool = False  # never open a connection
    model_dirs: tuple[Path, ...] = ()  # folders of the user's to list models from
    scale_dtype: str = ""  # of converted models; empty = by this machine's device
    environ: dict[str, str] = field(default_factory=dict)  # empty = this process's own
