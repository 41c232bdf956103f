"""Metal as macOS 14 and later shows it to a service: real C functions, so that ctypes is tried too.

Without CoreGraphics in the process there is no default device; `all_devices` are there either way.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

GIB = 2**30
_ARRAY, _DEVICE, _NAME = 0x1000, 0x2000, 0x3000


@dataclass
class FakeMetalLibraries:
    """`load` stands in for `ctypes.CDLL`."""

    all_devices: int = 1
    default_device: bool = True
    name: bytes = b"Apple M4 Max"
    working_set: int = 107 * GIB
    max_buffer: int = 80 * GIB
    loaded: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    _selectors: list[bytes] = field(default_factory=lambda: [b""])
    _kept: list[Any] = field(default_factory=list)

    def load(self, path: str) -> Any:
        self.loaded.append(path.rpartition("/")[2])
        return {"Metal": _Library(self._metal()), "libobjc.A.dylib": _Library(self._objc())}.get(
            self.loaded[-1], object()
        )

    def _metal(self) -> dict[str, Any]:
        graphics = "CoreGraphics" in self.loaded

        def copy_all() -> int:
            self.asked.append("all")
            return _ARRAY

        def default() -> int:
            self.asked.append("default")
            return _DEVICE if self.default_device and graphics else 0

        make = ctypes.CFUNCTYPE(ctypes.c_void_p)
        return {"MTLCopyAllDevices": make(copy_all), "MTLCreateSystemDefaultDevice": make(default)}

    def _objc(self) -> dict[str, Any]:
        def register(name: bytes) -> int:
            self._selectors.append(name)
            return len(self._selectors) - 1

        def send(target: int, selector: int, index: int) -> int:
            return self._answer(target, self._selectors[selector].decode(), index)

        self._kept.append(ctypes.create_string_buffer(self.name))
        word = ctypes.c_uint64
        return {
            "sel_registerName": ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(register),
            "objc_msgSend": ctypes.CFUNCTYPE(word, word, word, word)(send),
        }

    def _answer(self, target: int, selector: str, index: int) -> int:
        if (target, selector) == (_ARRAY, "objectAtIndex:"):
            assert index < self.all_devices, "NSRangeException: this would end the process"
            return _DEVICE
        answers = {
            (_ARRAY, "count"): self.all_devices,
            (_DEVICE, "name"): _NAME,
            (_NAME, "UTF8String"): ctypes.addressof(self._kept[0]),
            (_DEVICE, "recommendedMaxWorkingSetSize"): self.working_set,
            (_DEVICE, "maxBufferLength"): self.max_buffer,
        }
        return answers[target, selector]


class _Library:
    """A library of C functions, looked up by attribute as ctypes does."""

    def __init__(self, functions: dict[str, Any]) -> None:
        for name, function in functions.items():
            setattr(self, name, function)
