"""The words in which Metal and CUDA differ, and how a text becomes a kernel.

Bodies use the `TQ_` names below and nothing of either language that the other lacks. Both have 32
lanes. A kernel's name carries a hash of its text: MLX caches compiled kernels by name, on disk too.
"""

import hashlib
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from swiftlm_engine.turboquant.kernels.common import COMMON

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    header: str  # definitions before everything else
    entry: str  # first lines of every body; Metal looks for attribute names there
    compiler: Callable[..., Any]  # mx.fast.metal_kernel or mx.fast.cuda_kernel


@dataclass(frozen=True, slots=True)
class Text:
    """A kernel before it meets a dialect."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body: str
    header: str = ""


def compiled(
    dialect: Dialect, text: Text, constants: str, sizes: dict[str, int]
) -> Callable[..., list[mx.array]]:
    """The kernel of `text`, with `constants` (lines) in front and `sizes` as its first line."""
    known = "".join(f"constexpr int {name} = {value};\n" for name, value in sizes.items())
    source = _squeezed(_shrunk(dialect.entry + known + text.body))
    header = _shrunk(_needed(dialect.header + constants + COMMON + text.header, source))
    digest = hashlib.sha256((header + source).encode()).hexdigest()[:12]
    kernel: Callable[..., list[mx.array]] = dialect.compiler(
        name=f"tq_{text.name}_{digest}",
        input_names=list(text.inputs),
        output_names=list(text.outputs),
        source=source,
        header=header,
    )
    return kernel


def is_sound(first_error: Callable[[], float], limit: float, without: str) -> bool:
    """Whether kernels run on this GPU and their first result is right. `without`: what there is in
    their place, for the log."""
    try:
        error = first_error()
    except Exception as failure:  # whatever a driver or a compiler says
        log.warning("%s: their kernel does not run", without, exc_info=failure)
        return False
    if error < limit:
        return True
    log.warning("%s: their kernel is off by %.3f", without, error)
    return False


# MLX joins and hashes the whole text on every call: 1 us of host time per 3 kB.


def _shrunk(text: str) -> str:
    """Without comments and indentation."""
    lines = (re.sub(r"\s*//.*", "", line).strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def _squeezed(text: str) -> str:
    """A body without the spaces that only people need (bodies have no strings and no `- -`)."""
    return re.sub(r" *([-+*/%=<>!&|^?:;,(){}\[\]]) *", r"\1", text)


def _needed(header: str, source: str) -> str:
    """The header without definitions that nothing uses."""
    kept = source
    for block in reversed(re.split(r"\n(?=#define|TQ_CONST|\n)", header)):
        name = _DEFINED.search(block)
        if name is None or re.search(rf"\b{name[1]}\b", kept):
            kept = f"{block}\n{kept}"
    return kept[: len(kept) - len(source)]


# The name that a block of the header defines.
_DEFINED = re.compile(
    r"^\s*(?://[^\n]*\n|\s|template <[^>]*>)*"
    r"(?:#define|TQ_CONST \w+|TQ_FN \w+|struct(?: alignas\([^{]*\))?) (\w+)"
)


_CUDA_HEADER = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
typedef unsigned int u32;
#define TQ_FN __device__ __forceinline__
#define TQ_CONST __device__ const
#define TQ_IN const
#define TQ_OUT
#define TQ_SHARED __shared__
#define TQ_SHARED16 __shared__ __align__(16)
#define TQ_SHARED_PTR
#define TQ_REF
#define TQ_BARRIER() __syncthreads()
#define TQ_WARP_BARRIER() __syncwarp()
#define TQ_XOR(v, m) __shfl_xor_sync(0xffffffffu, v, m)
#define TQ_SHUFFLE(v, l) __shfl_sync(0xffffffffu, v, l)
#define TQ_ANY(c) __any_sync(0xffffffffu, c)
#define TQ_FLOAT(u) __uint_as_float(u)
#define TQ_BITS(x) __float_as_uint(x)
#define TQ_FMA(a, b, c) fmaf(a, b, c)
#define TQ_SQRT(x) sqrtf(x)
#define TQ_ROUND(x) rintf(x)
#define TQ_MOVE(to, from) to = from
#define TQ_UNROLL _Pragma("unroll")
#define TQ_UNROLL4 _Pragma("unroll 4")

#ifndef TQ_EMULATED  // the tests run this text on the CPU and bring their own PTX
TQ_FN float tq_exp2(float x) {
  float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y;
}
#endif
#define TQ_EXP2(x) tq_exp2(x)
"""

_CUDA_ENTRY = """
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int bx = blockIdx.x, by = blockIdx.y, nbx = gridDim.x;
"""

_METAL_HEADER = r"""
typedef uint u32;
#define TQ_FN inline
#define TQ_CONST constant
#define TQ_IN const device
#define TQ_OUT device
#define TQ_SHARED threadgroup
#define TQ_SHARED16 alignas(16) threadgroup
#define TQ_SHARED_PTR threadgroup
#define TQ_REF thread
#define TQ_BARRIER() threadgroup_barrier(mem_flags::mem_threadgroup)
#define TQ_WARP_BARRIER() simdgroup_barrier(mem_flags::mem_threadgroup)
#define TQ_XOR(v, m) simd_shuffle_xor(v, (ushort)(m))
#define TQ_SHUFFLE(v, l) simd_shuffle(v, (ushort)(l))
#define TQ_ANY(c) simd_any(c)
#define TQ_FLOAT(u) as_type<float>(u)
#define TQ_BITS(x) as_type<uint>(x)
#define TQ_FMA(a, b, c) fma(a, b, c)
#define TQ_SQRT(x) precise::sqrt(x)
#define TQ_ROUND(x) rint(x)
#define TQ_MOVE(to, from) for (int i = 0; i < L; ++i) to.v[i] = from.v[i]
#define TQ_UNROLL _Pragma("clang loop unroll(full)")
#define TQ_UNROLL4 _Pragma("clang loop unroll_count(4)")
#define TQ_EXP2(x) fast::exp2(x)
"""

_METAL_ENTRY = """
  const int lane = thread_index_in_simdgroup, warp = simdgroup_index_in_threadgroup;
  const int bx = threadgroup_position_in_grid.x, by = threadgroup_position_in_grid.y;
  const int nbx = threadgroups_per_grid.x;
"""


def metal() -> Dialect:
    return Dialect("metal", _METAL_HEADER, _METAL_ENTRY, mx.fast.metal_kernel)


def cuda() -> Dialect:
    return Dialect("cuda", _CUDA_HEADER, _CUDA_ENTRY, _cuda_kernel)


def _cuda_kernel(
    name: str, input_names: list[str], output_names: list[str], source: str, header: str
) -> Callable[..., list[mx.array]]:
    """Two lines that include the text: MLX joins and hashes what it is given on every call."""
    shapes = [f"{n}_shape" for n in input_names if f"{n}_shape" in source]  # MLX looks for them
    kernel: Callable[..., list[mx.array]] = mx.fast.cuda_kernel(
        name=name,
        input_names=input_names,
        output_names=output_names,
        source=f'// {" ".join(shapes)}\n#include "{_file_in_memory(source)}"\n',
        header=f'#include "{_file_in_memory(header)}"\n',
    )
    return kernel


def _file_in_memory(text: str) -> str:
    """A name under which this process, and nobody else, can read it as long as it lives: the
    compiler does so when the kernel first runs."""
    descriptor = os.memfd_create("kernel")  # Linux, as CUDA is
    with open(descriptor, "w", closefd=False) as file:
        file.write(text)
    return f"/proc/self/fd/{descriptor}"
