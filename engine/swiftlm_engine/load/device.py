"""What MLX computes on here, in the words that `status` shows."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from enum import StrEnum

import mlx.core as mx

from swiftlm_engine.expansion.blas import blas_name


class Device(StrEnum):
    METAL = "metal"
    CUDA = "cuda"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """`mx.device_info()` in one spelling for all back ends. 0 = MLX does not say."""

    name: str = ""
    architecture: str = ""
    memory_bytes: int = 0
    working_set_bytes: int = 0  # Metal: what it recommends at most, and so the largest wired limit
    max_buffer_bytes: int = 0


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


def device_facts() -> DeviceFacts:
    """What MLX says of the device it computes on."""
    own = mx.device_info()
    return DeviceFacts(
        str(own.get("device_name", "")),
        str(own.get("architecture", "")),
        int(own.get("memory_size") or own.get("total_memory") or 0),
        int(own.get("max_recommended_working_set_size") or 0),
        int(own.get("max_buffer_length") or 0),
    )


def memory_bytes() -> int:
    """Of the device that holds models: the GPU's own, or the machine's."""
    total = device_facts().memory_bytes
    return total or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def computes_as() -> str:
    """Machines of one name get the same bits from the same operation on the same arrays."""
    own = device_facts()
    name = f"{own.name} {own.architecture}"
    if _name_device() is not Device.CPU:
        return name
    return f"{name}, {os.cpu_count()} cores, {blas_name()}"
