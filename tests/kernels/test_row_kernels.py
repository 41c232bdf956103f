"""The kernel over rows of unequal length, run on the CPU lane by lane, against plain ops.

Both dialects, from one body; tokens behind the lengths are NaN, so that a read of them shows.
"""

from dataclasses import dataclass, replace

import mlx.core as mx
import pytest
from kernels.shim.build import Options, compiler, is_zig
from kernels.shim.run import Runner

from swiftlm_engine.kv.parts_attention import attend_parts
from swiftlm_engine.kv.slots import Slot
from swiftlm_engine.turboquant.kernels import dialect
from swiftlm_engine.turboquant.kernels.rows import MAX_SLOTS, RowKernels, _attend_text

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(compiler() is None, reason="needs clang++ 16 or later, or ziglang"),
]


@dataclass(frozen=True)
class Case:
    dialect: str
    heads: int
    group: int
    dim: int
    dtype: mx.Dtype = mx.float16
    sinks: bool = False
    lengths: tuple[tuple[int, int], ...] = ((0, 1), (1, 255), (1, 31), (2, 258))  # row, tokens

    def __str__(self) -> str:
        return f"{self.dialect}-h{self.heads}-g{self.group}-d{self.dim}-{self.dtype.size}"


CASES = [
    Case("metal", 2, 4, 64),
    Case("metal", 1, 3, 80, sinks=True),
    Case("metal", 1, 8, 128),
    Case("metal", 1, 2, 256, mx.bfloat16),
    Case("metal", 1, 4, 64, lengths=tuple((i, 5 * i + 1) for i in range(9))),
    Case("cuda", 2, 4, 128),
    Case("cuda", 1, 6, 96, mx.bfloat16, sinks=True),
    Case("cuda", 1, 2, 512),
]


def emulated(name: str, options: Options | None = None) -> RowKernels:
    words = dialect.metal() if name == "metal" else dialect.cuda()
    return RowKernels(replace(words, compiler=Runner(name, options or Options()).compiler))


def slots_of(case: Case) -> tuple[list[Slot], mx.array, mx.array | None]:
    mx.random.seed(case.dim)
    slots = []
    for row, length in case.lengths:
        shape = (2, 1, case.heads, length + 7, case.dim)
        both = mx.where(mx.arange(length + 7)[:, None] < length, mx.random.normal(shape), mx.nan)
        keys, values = both.astype(case.dtype)
        slots.append(Slot(keys, values, length, row))
    num_rows = case.lengths[-1][0] + 1
    queries = mx.random.normal((num_rows, case.heads * case.group, 1, case.dim)).astype(case.dtype)
    sinks = mx.random.normal((case.heads * case.group,)).astype(case.dtype) if case.sinks else None
    return slots, queries, sinks


def wanted(slots: list[Slot], queries: mx.array, sinks: mx.array | None) -> mx.array:
    rows = []
    for row in range(queries.shape[0]):
        parts = [[a.astype(mx.float32) for a in s.arrays()] for s in slots if s.row == row]
        one, scale = queries[row : row + 1].astype(mx.float32), queries.shape[-1] ** -0.5
        keys, values = [k for k, _ in parts], [v for _, v in parts]
        rows.append(attend_parts(one, keys, values, None, scale, sinks))
    return mx.concatenate(rows)


def error_of(case: Case, kernels: RowKernels) -> float:
    slots, queries, sinks = slots_of(case)
    assert kernels.fits(queries, slots[0].keys, slots[0].values)
    found = kernels.attend(queries, slots, case.dim**-0.5, sinks).astype(mx.float32)
    want = wanted(slots, queries, sinks)
    return (mx.linalg.norm(found - want) / mx.linalg.norm(want)).item()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_of_any_length_get_the_attention_of_plain_ops(case: Case) -> None:
    assert error_of(case, emulated(case.dialect)) < (1e-3 if case.dtype == mx.float16 else 8e-3)


def test_more_rows_than_one_launch_holds_are_attended_to_in_several() -> None:
    lengths = tuple((row, n) for row in range(8) for n in (3, 4))
    assert len(lengths) > MAX_SLOTS
    assert error_of(Case("metal", 1, 2, 64, lengths=lengths), emulated("metal")) < 1e-3


def test_the_largest_launch_leaves_room_in_metals_table_of_buffers() -> None:
    text = _attend_text(MAX_SLOTS)
    shapes = [name for name in text.inputs if f"{name}_shape" in text.body]
    assert len(text.inputs) + len(shapes) + len(text.outputs) <= 31


@pytest.mark.parametrize("sanitize", ["thread", "address"])
def test_row_kernels_pass_the_sanitizers(sanitize: str) -> None:
    if sanitize == "address" and is_zig():
        pytest.skip("zig has no AddressSanitizer")
    case = Case("cuda", 1, 2, 64, lengths=((0, 40), (1, 3)))
    assert error_of(case, emulated("cuda", Options(sanitize=sanitize))) < 1e-3
