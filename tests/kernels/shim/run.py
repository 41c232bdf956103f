"""Run a kernel text on the CPU: drop-ins for `mx.fast.metal_kernel` and `mx.fast.cuda_kernel`.

A text that passes has a well-formed MLX signature, right address spaces (Metal), at most 1024
threads a group and the dialect's shared memory. Unwritten outputs and shared memory read as 0xFF
bytes. `sanitize="address"` also finds indices out of range, `"thread"` missing barriers. Not seen:
rounding of fast maths, registers, alignment of shared arrays, order between threadgroups, speed.
"""

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx
import numpy as np
from kernels.shim.build import Options, build
from kernels.shim.signature import (
    ShimError,
    Signature,
    Template,
    cuda_signature,
    metal_signature,
    type_name,
)

MAX_THREADS = 1024
Grid = tuple[int, int, int]


@dataclass(slots=True)
class Runner:
    """One dialect with its options; `shared_bytes` and `threads` are the largest seen so far."""

    dialect: str  # metal, cuda
    options: Options = field(default_factory=Options)
    shared_bytes: dict[str, int] = field(default_factory=dict)
    threads: dict[str, int] = field(default_factory=dict)

    def compiler(
        self,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str = "",
    ) -> Callable[..., list[mx.array]]:
        """As `mx.fast.metal_kernel(...)`: returns a function from MLX arrays to MLX arrays."""

        def call(
            *,
            inputs: Sequence[mx.array],
            output_shapes: Sequence[tuple[int, ...]],
            output_dtypes: Sequence[mx.Dtype],
            grid: Grid,
            threadgroup: Grid,
            template: Template = (),
        ) -> list[mx.array]:
            _check_grid(grid, threadgroup)
            threadgroup = tuple(min(a, b) for a, b in zip(threadgroup, grid, strict=True))
            held = {n: _to_numpy(x) for n, x in zip(input_names, inputs, strict=True)}
            types = {n: type_name(d) for n, d in zip(output_names, output_dtypes, strict=True)}
            make = metal_signature if self.dialect == "metal" else cuda_signature
            kernel = make(name, held, types, source, header, template)
            outs = {
                n: np.full(shape, 0xFF, np.uint8)
                if dtype.size == 1
                else np.full((*shape, dtype.size), 0xFF, np.uint8)
                for n, shape, dtype in zip(output_names, output_shapes, output_dtypes, strict=True)
            }
            memory = _memory(kernel, {n: a for n, (a, _) in held.items()}, outs)
            used = _launch(kernel, self, memory, grid, threadgroup)
            kind = name.split("_")[1]
            self.shared_bytes[kind] = max(used, self.shared_bytes.get(kind, 0))
            self.threads[kind] = max(int(np.prod(threadgroup)), self.threads.get(kind, 0))
            return [
                mx.view(mx.array(outs[n]), dtype).reshape(shape)
                for n, shape, dtype in zip(output_names, output_shapes, output_dtypes, strict=True)
            ]

        return call


def _check_grid(grid: Grid, threadgroup: Grid) -> None:
    if min(*grid, *threadgroup) < 1:
        raise ShimError("limit", f"grid {grid} and threadgroup {threadgroup} must be positive")
    if int(np.prod(threadgroup)) > MAX_THREADS:
        raise ShimError("limit", f"{threadgroup} is more than {MAX_THREADS} threads")


def _to_numpy(x: mx.array) -> tuple[np.ndarray, str]:
    ctype = type_name(x.dtype)
    if x.dtype == mx.bfloat16:
        x = x.view(mx.uint16)
    return np.ascontiguousarray(np.array(x)), ctype


def _memory(
    kernel: Signature, inputs: dict[str, np.ndarray], outs: dict[str, np.ndarray]
) -> list[tuple[np.ndarray, bool]]:
    """Per buffer its memory, and whether the kernel writes it."""
    memory = []
    for buffer in kernel.buffers:
        if buffer.kind == "out":
            memory.append((outs[buffer.name], True))
            continue
        array = inputs[buffer.name]
        parts = {
            "in": array,
            "_shape": np.array([*array.shape, *[0] * (8 - array.ndim)], np.int32),
            "_strides": np.array([s // array.itemsize for s in array.strides], np.int64),
            "_ndim": np.array(array.ndim, np.int32),
        }
        memory.append((parts[buffer.kind], False))
    return memory


def _launch(
    kernel: Signature,
    runner: Runner,
    memory: list[tuple[np.ndarray, bool]],
    grid: Grid,
    threadgroup: Grid,
) -> int:
    """Run; returns the bytes of shared memory a threadgroup took."""
    built = build(kernel, runner.dialect, runner.options)
    if runner.options.sanitize is not None:
        return _launch_program(built, runner.options, memory, (*grid, *threadgroup))
    library = ctypes.CDLL(str(built))
    message, used = ctypes.create_string_buffer(1024), ctypes.c_int64()
    pointers = (ctypes.c_void_p * len(memory))(*[array.ctypes.data for array, _ in memory])
    sizes = (ctypes.c_int64 * 6)(*grid, *threadgroup)
    timeout = ctypes.c_double(runner.options.timeout_s)
    if library.shim_run(pointers, sizes, timeout, message, ctypes.byref(used)):
        raise ShimError("launch", message.value.decode())
    return used.value


def _launch_program(
    built: Path, options: Options, memory: list[tuple[np.ndarray, bool]], sizes: tuple[int, ...]
) -> int:
    with tempfile.TemporaryDirectory() as folder:
        command = [str(built), folder, str(options.timeout_s), *map(str, sizes)]
        for i, (array, written) in enumerate(memory):
            array.tofile(f"{folder}/{i}")
            command += ["w" if written else "r", str(array.nbytes)]
        settings = {
            "TSAN_OPTIONS": "halt_on_error=1 report_signal_unsafe=0",
            "ASAN_OPTIONS": "detect_leaks=0",
        }
        limit = options.timeout_s * 20 + 60
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, env={**os.environ, **settings}
        )
        if done.returncode:
            kind = "launch" if done.stderr.startswith("SHIM:") else "sanitizer"
            raise ShimError(kind, done.stderr[:4000])
        for i, (array, written) in enumerate(memory):
            if written:
                array.reshape(-1).view(np.uint8)[:] = np.fromfile(f"{folder}/{i}", np.uint8)
        return int(done.stdout)
