"""Which number format converted models get on this machine, found out without loading MLX."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from pathlib import Path


def scale_dtype() -> str:
    """float32 where MLX runs on the CPU, whose 16-bit quantised products are many times slower."""
    return "auto" if _has_metal() or _has_cuda() else "float32"


def _has_metal() -> bool:
    return sys.platform == "darwin" and platform.machine() == "arm64"


def _has_cuda() -> bool:
    """A driver, and an MLX that was installed with its CUDA back end."""
    if not Path("/proc/driver/nvidia/version").exists():
        return False
    names = {str(d.metadata["Name"]).lower() for d in metadata.distributions()}
    return any(name.startswith("mlx-cuda") for name in names)
