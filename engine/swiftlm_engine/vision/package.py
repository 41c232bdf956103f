"""The one part of mlx-vlm that is used: its models.

The package's own `__init__` imports a trainer, a generation loop and an HTTP client. A bare parent
stands in for it, so that an engine holds none of that.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

_NAME = "mlx_vlm"


def import_model(name: str) -> ModuleType:
    """The module `mlx_vlm.models.NAME`. Raises ImportError without the extra `vision`."""
    if _NAME not in sys.modules:
        spec = importlib.util.find_spec(_NAME)
        if spec is None:
            raise ImportError(f"{_NAME} is not installed")
        sys.modules[_NAME] = importlib.util.module_from_spec(spec)  # its path, and no more
    return importlib.import_module(f"{_NAME}.models.{name}")
