"""`swiftlmd selfcheck`: can this installation run here? Asked by the installer before it switches.

Everything is imported, the configuration is read, and MLX is asked for one product in a process
of its own, as an engine would. Prints one line per check; 0 when all passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from swiftlm_proto.exit_codes import DaemonExit
from swiftlm_proto.paths import Paths
from swiftlmd.config.http import http_options
from swiftlmd.config.load import ConfigError, load
from swiftlmd.engines.environment import engine_environment
from swiftlmd.memory.devices import DEVICE_INFO

_MLX_S = 120.0
_ONE_PRODUCT = (
    "from swiftlm_engine.isolation.file_limit import bear_few_files; bear_few_files(); "
    "import mlx.core as mx, mlx_lm; a = mx.ones((4, 4)); mx.eval(a @ a); "
    "print(mx.__version__, mx.default_device()); "
    f"{DEVICE_INFO}"
)


@dataclass(frozen=True, slots=True)
class SelfCheck:
    name: str
    code: DaemonExit  # STAY_DOWN = passed
    detail: str
    device_info: str = ""  # of `mlx_check`: MLX's own, as JSON


def self_check(paths: Paths) -> int:
    """Prints the checks; returns the code of the first that failed."""
    failed: list[DaemonExit] = []
    for check in _checks(paths):
        passed = check.code is DaemonExit.STAY_DOWN
        print(f"{'ok' if passed else 'FAILED'} {check.name}: {check.detail}", flush=True)
        if not passed:
            failed.append(check.code)
    return failed[0] if failed else DaemonExit.STAY_DOWN


def _checks(paths: Paths) -> Iterator[SelfCheck]:
    python = sys.version.split()[0]
    yield SelfCheck("python", DaemonExit.STAY_DOWN, f"{python} at {sys.executable}")
    yield _configuration(paths)
    yield mlx_check()


def _configuration(paths: Paths) -> SelfCheck:
    try:
        http_options(load(paths.config_file, os.environ, {}).settings)
    except ConfigError as error:
        return SelfCheck("configuration", DaemonExit.BAD_CONFIG, str(error))
    return SelfCheck("configuration", DaemonExit.STAY_DOWN, str(paths.config_file))


def mlx_check() -> SelfCheck:
    """Whether MLX computes, asked in a process of its own; takes seconds."""
    isolated = "-I" if sys.flags.isolated else "-P"  # nothing from where we were started
    try:
        done = subprocess.run(
            [sys.executable, isolated, "-c", _ONE_PRODUCT],
            env=engine_environment(os.environ, {}),
            capture_output=True,
            text=True,
            timeout=_MLX_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return SelfCheck("mlx", DaemonExit.NO_DEVICE, f"no product within {_MLX_S:g} s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return SelfCheck("mlx", DaemonExit.NO_DEVICE, last)
    version, _, info = done.stdout.strip().partition("\n")
    return SelfCheck("mlx", DaemonExit.STAY_DOWN, version, info)
