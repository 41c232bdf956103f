"""Which model types mlx-lm has a class for, from its file names: importing it would load MLX."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path


def is_known(model_type: str) -> bool:
    """True also where mlx-lm cannot be looked at, so that a listing never hides a model."""
    names = _names()
    return not names or model_type.replace("-", "_") in names


@functools.cache
def _names() -> frozenset[str]:
    spec = find_spec("mlx_lm")
    folders = spec.submodule_search_locations if spec else None
    return frozenset(p.stem for f in folders or () for p in (Path(f) / "models").glob("*.py"))
