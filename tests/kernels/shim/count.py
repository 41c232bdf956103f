"""Instructions of a kernel's loops, counted in what clang makes of the text for a real GPU target.

The neutral words become NVPTX (32 lanes, scalar registers, one multiply-add per instruction, as on
Apple GPUs); a loop is what lies between a label and the jump back to it. Metal itself cannot be
compiled here: its compiler may do better or worse, so the count bounds the text, not a chip.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.shim.build import compiler
from kernels.shim.signature import ShimError

from swiftlm_engine.turboquant.kernels.constants import constants
from swiftlm_engine.turboquant.kernels.dialect import Dialect, Text, compiled

_HEADER = r"""
typedef unsigned int u32;
typedef _Float16 half;
typedef float float4 __attribute__((ext_vector_type(4)));

#define TQ_FN inline __attribute__((always_inline))
#define TQ_CONST static const
#define TQ_IN const __attribute__((address_space(1)))
#define TQ_OUT __attribute__((address_space(1)))
#define TQ_SHARED static __attribute__((address_space(3)))
#define TQ_SHARED16 alignas(16) static __attribute__((address_space(3)))
#define TQ_SHARED_PTR __attribute__((address_space(3)))
#define TQ_REF
#define TQ_BARRIER() __nvvm_bar_sync(0)
#define TQ_WARP_BARRIER() asm volatile("" ::: "memory")
#define TQ_XOR(v, m) __nvvm_shfl_sync_bfly_f32(~0u, v, m, 31)
#define TQ_SHUFFLE(v, l) __nvvm_shfl_sync_idx_f32(~0u, v, l, 31)
#define TQ_ANY(c) __nvvm_vote_any_sync(~0u, c)
#define TQ_FLOAT(u) __builtin_bit_cast(float, u)
#define TQ_BITS(x) __builtin_bit_cast(u32, x)
#define TQ_FMA(a, b, c) __builtin_fmaf(a, b, c)
#define TQ_EXP2(x) __nvvm_ex2_approx_f(x)
#define TQ_MOVE(to, from) for (int i = 0; i < L; ++i) to.v[i] = from.v[i]
#define TQ_UNROLL _Pragma("clang loop unroll(full)")
#define TQ_UNROLL4 _Pragma("clang loop unroll_count(4)")
"""

_ENTRY = """
  const int thread_ = __nvvm_read_ptx_sreg_tid_x(), lane = thread_ & 31, warp = thread_ >> 5;
  const int bx = __nvvm_read_ptx_sreg_ctaid_x(), by = __nvvm_read_ptx_sreg_ctaid_y();
  const int nbx = __nvvm_read_ptx_sreg_nctaid_x();
"""

_TARGET = (
    *("-x", "c++", "-std=c++20", "--target=nvptx64-nvidia-cuda", "-nostdinc", "-w", "-S", "-O3"),
    *("-Xclang", "-target-cpu", "-Xclang", "sm_80", "-Xclang", "-target-feature"),
    *("-Xclang", "+ptx70", "-ffp-contract=fast"),
)
_TYPES = {"kw": "u32", "vw": "u32", "part": "float", "pages": "u32", "tokens": "u32"}


@dataclass(frozen=True, slots=True)
class Loop:
    """One innermost loop: how many instructions a turn issues."""

    instructions: int
    multiply_adds: int
    shuffles: int


def targets_nvptx() -> bool:
    command = compiler()
    if command is None:
        return False
    done = subprocess.run([*command, "--print-targets"], capture_output=True, text=True)
    return "nvptx64" in done.stdout


def innermost_loops(
    text: Text, arguments: tuple[Any, Any, float, Any], sizes: dict[str, int]
) -> list[Loop]:
    """In the order of the text; `arguments` are those of `constants`."""
    seen: dict[str, str] = {}
    counting = Dialect("count", _HEADER, _ENTRY, lambda **kernel: seen.update(kernel))
    compiled(counting, text, constants(*arguments), sizes)
    return _loops(_assembly(_function(text, seen["header"], seen["source"])))


def _function(text: Text, header: str, source: str) -> str:
    parameters = []
    for name in text.inputs:
        parameters.append(f"TQ_IN {_TYPES.get(name, 'half')}* {name}")
        if f"{name}_shape" in source:
            parameters.append(f"TQ_IN int* {name}_shape")
    parameters += [f"TQ_OUT {_TYPES.get(name, 'half')}* {name}" for name in text.outputs]
    return f"{header}typedef half Z;\nvoid counted({', '.join(parameters)}) {{\n{source}}}\n"


def _assembly(source: str) -> str:
    command = compiler()
    if command is None:
        raise ShimError("compile", "no clang++ with the nvptx64 target")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out.s"
        done = subprocess.run(
            [*command, *_TARGET, "-o", str(output), "-"],
            input=source,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise ShimError("compile", done.stderr[:4000])
        return output.read_text()


def _loops(assembly: str) -> list[Loop]:
    lines = [line.strip() for line in assembly.splitlines()]
    labels = {
        line.split(":")[0]: i for i, line in enumerate(lines) if re.match(r"\$L__BB\w+:", line)
    }
    spans = []
    for i, line in enumerate(lines):
        target = re.search(r"\bbra(?:\.uni)?\s+(\$L__BB\w+)", line)
        if target and labels[target[1]] <= i:
            spans.append((labels[target[1]], i))
    inner = [s for s in spans if not any(s[0] <= o[0] and o[1] <= s[1] and o != s for o in spans)]
    return [_counted(lines[start : stop + 1]) for start, stop in sorted(inner)]


def _counted(lines: list[str]) -> Loop:
    code = [re.sub(r"^@!?%\w+\s+", "", line) for line in lines]
    issued = [line for line in code if re.match(r"[a-z]+\.", line)]
    return Loop(
        len(issued),
        sum(line.startswith("fma.") for line in issued),
        sum(line.startswith("shfl.") for line in issued),
    )
