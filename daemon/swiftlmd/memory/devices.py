"""What the accelerator allows, asked without loading MLX: Metal by ctypes, CUDA by nvidia-smi.

The working set is read at every start, never taken from a table: `iogpu.wired_limit_mb` changes it.
MLX's own numbers win where they are known: engines report them, and a daemon that sees no Metal
device asks MLX in a process of its own.
"""

from __future__ import annotations

import ctypes
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from swiftlm_engine.brain.plan import Accelerator
from swiftlmd.memory.macos import MacReadings

log = logging.getLogger(__name__)

# Metal finds a default device only in a process that has CoreGraphics, so that comes first.
_CORE_GRAPHICS = "/System/Library/Frameworks/CoreGraphics.framework/CoreGraphics"
_METAL = "/System/Library/Frameworks/Metal.framework/Metal"
_OBJC = "/usr/lib/libobjc.A.dylib"
_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
_MLX_S = 60.0
DEVICE_INFO = "import json, mlx.core as mx; print(json.dumps(mx.device_info()))"


class DeviceSource(StrEnum):
    """Whose numbers these are; ASSUMED: neither saw a Metal device."""

    DAEMON = "daemon"
    ENGINE = "engine"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator. None = no such limit, or it could not be read."""

    accelerator: Accelerator = Accelerator.CPU
    name: str = ""
    working_set_bytes: int | None = None
    max_buffer_bytes: int | None = None
    source: DeviceSource = DeviceSource.DAEMON


def system_device(*, cuda: bool = False) -> Device:
    """Takes milliseconds (a process for CUDA): call it once, off the event loop."""
    if sys.platform == "darwin":
        return mac_device(ObjectiveC, mlx_device, lambda: MacReadings().chip_name())
    return cuda_device() if cuda else Device()


class ObjectiveC:
    """The few messages to Metal that a plan needs; only macOS has the libraries.

    `load` opens a library by its path; tests hand in one with the same functions.
    """

    def __init__(self, load: Callable[[str], Any] = ctypes.CDLL) -> None:  # Any: see ctypes
        load(_CORE_GRAPHICS)
        self._metal = load(_METAL)
        self._objc = load(_OBJC)
        self._objc.sel_registerName.restype = ctypes.c_void_p
        self._objc.sel_registerName.argtypes = [ctypes.c_char_p]

    def device(self) -> int | None:
        """The device that MLX takes: the first of all, else the default one."""
        devices = self._create("MTLCopyAllDevices")
        if devices and self.ask(devices, "count", ctypes.c_ulong):
            return self.ask(devices, "objectAtIndex:", ctypes.c_void_p, 0) or None
        return self._create("MTLCreateSystemDefaultDevice")

    def ask(self, target: int, name: str, kind: Any, *indexes: int) -> Any:  # Any: the result
        # A prototype per type: without one arm64 would pass the arguments as variadic ones.
        arguments = [ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_ulong for _ in indexes]]
        address = ctypes.cast(self._objc.objc_msgSend, ctypes.c_void_p).value
        send = ctypes.CFUNCTYPE(kind, *arguments)(address or 0)
        return send(target, self._objc.sel_registerName(name.encode()), *indexes)

    def _create(self, function: str) -> int | None:
        create = getattr(self._metal, function)
        create.restype = ctypes.c_void_p
        found: int | None = create()
        return found


def mac_device(
    open_metal: Callable[[], ObjectiveC],
    ask_mlx: Callable[[], Device],
    chip_name: Callable[[], str] = lambda: "",
) -> Device:
    """As this process sees it; where it sees none, as MLX does in a process of its own."""
    try:
        seen = metal_device(open_metal())
    except (OSError, AttributeError) as error:
        log.warning("cannot open Metal: %s", error)
        seen = Device(Accelerator.METAL)
    if seen.working_set_bytes:
        return seen
    log.warning("the daemon sees no Metal device; asking MLX for its limits")
    asked = ask_mlx()
    if asked.working_set_bytes:
        return asked
    log.error("neither the daemon nor MLX sees a Metal device; plans assume a part of the memory")
    return Device(Accelerator.METAL, chip_name(), source=DeviceSource.ASSUMED)


def metal_device(messages: ObjectiveC) -> Device:
    """The Metal device; a virtual machine may have none."""
    device = messages.device()
    if not device:
        return Device(Accelerator.METAL)
    name = messages.ask(device, "name", ctypes.c_void_p)
    text = messages.ask(name, "UTF8String", ctypes.c_char_p) if name else None
    return Device(
        Accelerator.METAL,
        (text or b"").decode(errors="replace"),
        messages.ask(device, "recommendedMaxWorkingSetSize", ctypes.c_uint64) or None,
        messages.ask(device, "maxBufferLength", ctypes.c_uint64) or None,
    )


def mlx_device() -> Device:
    """The Metal device as MLX sees it; takes seconds."""
    isolated = "-I" if sys.flags.isolated else "-P"
    command = [sys.executable, isolated, "-c", DEVICE_INFO]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MLX_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("MLX does not tell its device: %s", error)
        return Device(Accelerator.METAL)
    return parse_device_info(done.stdout)


def parse_device_info(text: str) -> Device:
    """The last line that `DEVICE_INFO` printed."""
    try:
        info = json.loads(text.strip().splitlines()[-1])
        return Device(
            Accelerator.METAL,
            str(info.get("device_name", "")),
            int(info.get("max_recommended_working_set_size") or 0) or None,
            int(info.get("max_buffer_length") or 0) or None,
            DeviceSource.ENGINE,
        )
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        log.warning("MLX's device info cannot be read: %s", error)
        return Device(Accelerator.METAL)


def cuda_device() -> Device:
    """The first CUDA device as the driver names it."""
    try:
        listed = subprocess.run(_NVIDIA_SMI, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("cannot ask nvidia-smi for the memory of the GPU: %s", error)
        return Device(Accelerator.CUDA)
    return parse_nvidia_smi(listed.stdout)


def parse_nvidia_smi(text: str) -> Device:
    name, _, mebibytes = text.partition("\n")[0].rpartition(",")
    if not mebibytes.strip().isdigit():
        return Device(Accelerator.CUDA, name.strip())
    return Device(Accelerator.CUDA, name.strip(), int(mebibytes) * 2**20)
