"""What a Mac says of itself, recorded in one file that replays anywhere: `doctor --mac --json`.

Outputs of the system's own programs as they are, and the daemon's view. Nothing personal: homes,
users and names of the machine are replaced, environments are left out.
"""

from __future__ import annotations

import getpass
import json
import platform
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any  # JSON values

SCHEMA = 1
_PATIENCE_S = 20.0
_LABEL = "io.github.swiftlm.swiftlmd"
_SYSCTLS = (
    "hw.memsize", "hw.optional.arm64", "iogpu.rsrc_limit", "iogpu.wired_limit_mb",
    "kern.boottime", "kern.memorystatus_vm_pressure_level", "machdep.cpu.brand_string",
    "sysctl.proc_translated",
    "vm.compressor_mode", "vm.pagesize", "vm.swapusage",
)  # fmt: skip
COMMANDS: dict[str, tuple[str, ...]] = {
    "sw_vers": ("/usr/bin/sw_vers",),
    "sysctl": ("/usr/sbin/sysctl", *_SYSCTLS),
    "vm_stat": ("/usr/bin/vm_stat",),
    "launchctl": ("/bin/launchctl", "print", "{domain}/" + _LABEL),
    "footprint": ("/usr/bin/footprint", "-f", "bytes", "{engine}"),
    "mount": ("/sbin/mount",),
    "assertions": ("/usr/bin/pmset", "-g", "assertions"),
    "filevault": ("/usr/bin/fdesetup", "status"),
}
# Asked in a process of its own, as an engine would see it: MLX must not load here. A kernel with an
# error planted in it must be refused, or no error of a kernel would be seen; the first line stays
# the last one where that ends the process.
_MLX = """
import json, time, mlx.core as mx
start = time.perf_counter()
a = mx.ones((64, 64))
mx.eval(a @ a)
found = {**mx.device_info(), "mlx": mx.__version__, "first_product_s": time.perf_counter() - start}

def ran(body):
    kernel = mx.fast.metal_kernel(
        name="swiftlm_check", input_names=["x"], output_names=["y"], source=body)
    x = mx.arange(32, dtype=mx.float32)
    [y] = kernel(inputs=[x], grid=(32, 1, 1), threadgroup=(32, 1, 1), output_shapes=[(32,)],
                 output_dtypes=[mx.float32])
    return mx.array_equal(y, 2 * x).item()

if mx.metal.is_available():
    print(json.dumps({**found, "kernel": {"ended": True}}), flush=True)
    kernel = {"right": False, "planted": "missed"}
    try:
        kernel["right"] = ran("uint i = thread_position_in_grid.x; y[i] = 2 * x[i];")
    except Exception as error:
        kernel["error"] = str(error)[-300:]
    try:
        ran("uint i = thread_position_in_grid.x; y[i] = no_such_name[i];")
    except Exception:
        kernel["planted"] = "caught"
    found["kernel"] = kernel
print(json.dumps(found))
"""

Run = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class MacRecord:
    """One Mac at one moment. `machine` and `models` are the daemon's, {} and [] without one."""

    commands: dict[str, str] = field(default_factory=dict)
    mlx: dict[str, Any] = field(default_factory=dict)  # mx.device_info(), or {"error": text}
    wheel: str = ""  # the WHEEL file of mlx-metal
    python: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    models: list[dict[str, Any]] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)  # the daemon's own doctor
    clocks: dict[str, float] = field(default_factory=dict)  # seconds: awake, with_sleep, date
    schema: int = SCHEMA

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_record(path: Path) -> MacRecord:
    """A recorded file. Raises ValueError for what is none, or newer than this version."""
    found = json.loads(path.read_text("utf-8"))
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ValueError(f"{path} is not a record of `swiftlmctl doctor --mac --json`")
    known = {name: found[name] for name in MacRecord.__dataclass_fields__ if name in found}
    return MacRecord(**known)


def record(
    status: dict[str, Any], checks: list[dict[str, Any]], uid: int, run: Run | None = None
) -> MacRecord:
    """Asks this Mac; takes seconds. What does not answer is kept as an empty text."""
    run = run or _run
    models = [_model(model) for model in status.get("models") or [] if model.get("loaded")]
    engine = next((str(model["pid"]) for model in models if model.get("pid")), "")
    given = {"domain": f"gui/{uid}", "engine": engine}
    commands = {}
    for name, words in COMMANDS.items():
        asked = [word.format(**given) for word in words]
        commands[name] = run(asked) if all(asked) else ""
    mlx = _environment_out(run([sys.executable, "-I", "-c", _MLX])).strip()
    found = MacRecord(
        commands={name: _environment_out(text) for name, text in commands.items()},
        mlx=_last_object(mlx),
        wheel=_wheel(),
        python={"version": platform.python_version(), "machine": platform.machine(),
                "mac_ver": platform.mac_ver()[0], "program": sys.executable},
        machine=status.get("machine") or {},
        models=models,
        checks=checks,
        clocks=_clocks(),
    )  # fmt: skip
    return anonymous(found, Path.home(), _user(), socket.gethostname())


def anonymous(found: MacRecord, home: Path, user: str, host: str) -> MacRecord:
    """Without homes and names."""
    text = json.dumps(found.to_json())
    text = text.replace(json.dumps(str(home))[1:-1], "~")
    for name, word in ((user, "USER"), (host, "HOST"), (host.partition(".")[0], "HOST")):
        if len(name) > 2 and name not in ("root", "localhost"):
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", word, text)
    return MacRecord(**json.loads(text))


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _environment_out(text: str) -> str:
    """launchctl prints what a job's environment holds, which may be a secret."""
    return re.sub(r"(environment = \{)[^}]*\}", r"\1 }", text)


def _last_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text.splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": text[-500:] or "MLX did not answer"}
    return found if isinstance(found, dict) else {"error": text[-500:]}


def _clocks() -> dict[str, float]:
    """As the daemon reads them to notice that the Mac slept."""
    with_sleep = getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC)
    return {
        "awake": time.monotonic(),
        "with_sleep": time.clock_gettime(with_sleep),
        "date": time.time(),
    }


def _wheel() -> str:
    for name in ("mlx-metal", "mlx"):
        try:
            return metadata.distribution(name).read_text("WHEEL") or ""
        except metadata.PackageNotFoundError:
            continue
    return ""


def _model(model: dict[str, Any]) -> dict[str, Any]:
    kept = ("model", "pid", "footprint_bytes", "priced_bytes", "loaded", "stats")
    return {name: model[name] for name in kept if name in model}


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
