"""What the accelerator allows, asked without loading MLX: Metal by ctypes, CUDA by nvidia-smi.

The working set is read at every start, never taken from a table: `iogpu.wired_limit_mb` changes it.
"""

from __future__ import annotations

import ctypes
import logging
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from swiftlm_engine.brain.plan import Accelerator

log = logging.getLogger(__name__)

_METAL = "/System/Library/Frameworks/Metal.framework/Metal"
_OBJC = "/usr/lib/libobjc.A.dylib"
_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator. None = no such limit, or it could not be read."""

    accelerator: Accelerator = Accelerator.CPU
    name: str = ""
    working_set_bytes: int | None = None
    max_buffer_bytes: int | None = None


def system_device(*, cuda: bool = False) -> Device:
    """Takes milliseconds (a process for CUDA): call it once, off the event loop."""
    if sys.platform == "darwin":
        return metal_device(ObjectiveC())
    return cuda_device() if cuda else Device()


class ObjectiveC:
    """The few messages to Metal that a plan needs; only macOS has the libraries."""

    def __init__(self) -> None:
        self._objc = ctypes.CDLL(_OBJC)
        self._metal = ctypes.CDLL(_METAL)
        self._objc.sel_registerName.restype = ctypes.c_void_p
        self._objc.sel_registerName.argtypes = [ctypes.c_char_p]

    def default_device(self) -> int | None:
        create = self._metal.MTLCreateSystemDefaultDevice
        create.restype = ctypes.c_void_p
        device: int | None = create()
        return device

    def ask(self, target: int, name: str, kind: Any) -> Any:  # Any: what the selector returns
        # A prototype per type: without one arm64 would pass the arguments as variadic ones.
        prototype = ctypes.CFUNCTYPE(kind, ctypes.c_void_p, ctypes.c_void_p)
        send = prototype(("objc_msgSend", self._objc))
        return send(target, self._objc.sel_registerName(name.encode()))


def metal_device(messages: ObjectiveC) -> Device:
    """The default Metal device; a virtual machine may have none."""
    device = messages.default_device()
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
