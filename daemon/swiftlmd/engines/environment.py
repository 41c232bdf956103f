"""The environment an engine process starts with; MLX and BLAS read it once, at import.

An engine never downloads anything, so the hub libraries are told to stay off the network.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

log = logging.getLogger(__name__)

# The CPU wheel of MLX carries a reference BLAS that is 24 x slower in prefill than OpenBLAS.
_OPENBLAS = (
    "lib/*/openblas-pthread/libopenblas.so.0",
    "lib/*/libopenblas.so.0",
    "lib64/libopenblasp.so.0",
    "lib64/libopenblas.so.0",
    "lib/libopenblas.so.0",
)

# What is meant for the daemon alone: its supervisor's channels, and secrets for downloads.
_KEPT_BACK = (
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "SWIFTLM_HTTP_API_KEYS",
)

# No option may set these for a child; what the daemon itself was started with stays.
_LOADS_CODE = ("LD_", "DYLD_", "PYTHON", "GCONV_PATH", "BASH_ENV", "PERL5")

_ALWAYS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "LANG": "C.UTF-8",
}


def engine_environment(
    base: Mapping[str, str],
    added: Mapping[str, str],
    *,
    platform: str = sys.platform,
    root: Path = Path("/usr"),
) -> dict[str, str]:
    """`base` with what an engine needs; what the operator added wins, unless it loads code."""
    env = {name: value for name, value in base.items() if name not in _KEPT_BACK} | _ALWAYS
    if base.get("LANG"):
        env["LANG"] = base["LANG"]
    if platform == "linux":
        env.setdefault("OPENBLAS_NUM_THREADS", str(usable_cores()))
        blas = find_openblas(root)
        if blas is not None and "LD_PRELOAD" not in base:
            env["LD_PRELOAD"] = str(blas)
    env.update(harmless(added))
    return env


def harmless(added: Mapping[str, str]) -> dict[str, str]:
    """`added` without what would make the linker or Python load somebody's code."""
    kept = {name: value for name, value in added.items() if not loads_code(name)}
    if left_out := sorted(added.keys() - kept.keys()):
        log.warning("engine.environment: left out, as it loads code: %s", ", ".join(left_out))
    return kept


def loads_code(name: str) -> bool:
    """Whether a variable of that name decides what code a process runs."""
    return name.upper().startswith(_LOADS_CODE)


def find_openblas(root: Path = Path("/usr")) -> Path | None:
    """The system's OpenBLAS, the threaded build first."""
    for pattern in _OPENBLAS:
        found = sorted(root.glob(pattern))
        if found:
            return found[0]
    return None


def usable_cores() -> int:
    """Physical cores that this process may run on: BLAS gains nothing from hyper-threads."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    physical = psutil.cpu_count(logical=False)
    return max(1, min(allowed or 1, physical or allowed or 1))
