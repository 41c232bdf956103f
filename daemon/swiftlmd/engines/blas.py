"""The BLAS libraries of a Linux machine, and how fast MLX is with each: asked in processes of their
own, since a process has one for life.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swiftlmd.engines.environment import engine_environment, find_openblas

# Beside the OpenBLAS that engines preload by themselves.
_OTHERS = (
    "lib/*/openblas-openmp/libopenblas.so.0",
    "lib/*/blis-pthread/libblis.so.*",
    "lib/*/blis-openmp/libblis.so.*",
    "lib*/libblis.so.*",
    "lib/*/libmkl_rt.so*",
)
_MEASURE_S = 60.0
_WHEEL = "the BLAS of MLX's wheel"
_CLEARLY_FASTER = 1.5  # sixteen rows, else it is the noise of a busy machine
# Sixteen rows in as many times of one row: they are multiplied one by one. A busy machine measures
# that of a good library, too, which is still many times as fast as the wheel's.
_SLOW = 10.0
_ABOVE_THE_WHEEL = 6.0

_PACKAGES = {
    "apt-get": "sudo apt-get install libopenblas0-pthread",
    "dnf": "sudo dnf install openblas-threads",
    "pacman": "sudo pacman -S openblas",
    "zypper": "sudo zypper install libopenblas_pthreads0",
}


@dataclass(frozen=True, slots=True)
class BlasSpeed:
    """What one library does. `library`: empty for the wheel's own."""

    library: str
    one_row_s: float
    sixteen_rows_s: float

    def slow_beside(self, wheel: BlasSpeed | None) -> bool:
        one_by_one = self.sixteen_rows_s > _SLOW * self.one_row_s
        if not self.library or wheel is None:
            return one_by_one
        return one_by_one and wheel.sixteen_rows_s < _ABOVE_THE_WHEEL * self.sixteen_rows_s

    def __str__(self) -> str:
        one, sixteen = 1e3 * self.one_row_s, 1e3 * self.sixteen_rows_s
        return f"{self.library or _WHEEL}: one row {one:.2f} ms, sixteen rows {sixteen:.2f} ms"


@dataclass(frozen=True, slots=True)
class BlasVerdict:
    """For `doctor`: what was found, and the command that mends it where one is slow."""

    good: bool
    words: str
    fix: str = ""


def installed(environ: Mapping[str, str], root: Path = Path("/usr")) -> list[str]:
    """What engines use first; the others once each, the wheel's own last."""
    found = [Path(environ["LD_PRELOAD"])] if environ.get("LD_PRELOAD") else []
    if (usual := find_openblas(root)) is not None:
        found.append(usual)
    for pattern in _OTHERS:
        found += sorted(root.glob(pattern))
    by_file = {path.resolve(): str(path) for path in reversed(found)}
    return [*dict.fromkeys(by_file[path.resolve()] for path in found), ""]


def measured(library: str, environ: Mapping[str, str]) -> BlasSpeed | None:
    """In a process of its own, some seconds; None if MLX does not run with it."""
    isolated = ["-I"] if sys.flags.isolated else []
    added = {"LD_PRELOAD": library} if library else {}
    env = engine_environment({k: v for k, v in environ.items() if k != "LD_PRELOAD"}, added)
    if not library:
        env.pop("LD_PRELOAD", None)
    try:
        done = subprocess.run(
            [sys.executable, *isolated, "-m", "swiftlm_engine.expansion.blas"],
            env=env,
            capture_output=True,
            text=True,
            timeout=_MEASURE_S,
            check=True,
        )
        report = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        return None
    return BlasSpeed(library, float(report["one_row_s"]), float(report["sixteen_rows_s"]))


def verdict(speeds: Sequence[BlasSpeed]) -> BlasVerdict:
    """`speeds[0]` is what engines use."""
    if not speeds:
        return BlasVerdict(False, "no product could be measured", _package())
    used, others = speeds[0], speeds[1:]
    words = "; ".join(str(speed) for speed in speeds)
    best = min(others, key=lambda speed: speed.sixteen_rows_s, default=used)
    if best.library and used.sixteen_rows_s > _CLEARLY_FASTER * best.sixteen_rows_s:
        line = f'LD_PRELOAD = "{best.library}" under [engine.environment] changes that'
        reason = f"{words}; engines use the first, which is slower: {line}"
        return BlasVerdict(False, reason, "swiftlmctl config edit")
    if used.slow_beside(next((speed for speed in speeds if not speed.library), None)):
        reason = f"{words}; sixteen rows take as long as so many products of one, and so do prompts"
        return BlasVerdict(False, reason, _package())
    return BlasVerdict(True, words)


def _package() -> str:
    """The command of this machine's package system."""
    found = (command for tool, command in _PACKAGES.items() if shutil.which(tool))
    return next(found, _PACKAGES["apt-get"])
