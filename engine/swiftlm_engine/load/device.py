"""What MLX computes on here, in the words that `status` shows."""

from __future__ import annotations

import ctypes
import os
import sys
from enum import StrEnum

import mlx.core as mx


class Device(StrEnum):
    METAL = "metal"
    CUDA = "cuda"
    CPU = "cpu"


class NoDevice(Exception):
    """MLX is installed for a GPU that this process cannot see."""


def find_device() -> Device:
    """The device MLX evaluates on, proven by one operation. Raises `NoDevice`."""
    device = _name_device()
    try:
        mx.eval(mx.ones((2, 2)) @ mx.ones((2, 2)))
    except RuntimeError as error:
        raise NoDevice(f"MLX found no usable {device} device: {error}") from error
    return device


def _name_device() -> Device:
    if sys.platform == "darwin":
        # `metal.is_available` is constant in a Metal build; the number of devices is the truth.
        if mx.device_count(mx.gpu) < 1:
            raise NoDevice("no Metal device is visible to this process (see `swiftlmctl doctor`)")
        return Device.METAL
    if mx.default_device().type == mx.DeviceType.gpu:
        return Device.CUDA
    return Device.CPU


def memory_bytes() -> int:
    """Of the device that holds models: the GPU's own, or the machine's."""
    own = mx.device_info()
    total = own.get("memory_size") or own.get("total_memory")
    return int(total) if total else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def computes_as() -> str:
    """Machines of one name get the same bits from the same operation on the same arrays."""
    own = mx.device_info()
    name = f"{own.get('device_name', '')} {own.get('architecture', '')}"
    if _name_device() is not Device.CPU:
        return name
    return f"{name}, {os.cpu_count()} cores, {blas_name()}"


def blas_name() -> str:
    """Which BLAS answers float32 matmul on the CPU back end.

    The wheel's own is the reference BLAS, an order of magnitude slower in prefill than OpenBLAS;
    the daemon preloads the system's OpenBLAS where there is one.
    """
    try:
        config = ctypes.CDLL(None).openblas_get_config
    except (AttributeError, OSError):
        return "reference (slow; install OpenBLAS, see README)"
    config.restype = ctypes.c_char_p
    return str(config().decode()).strip()
