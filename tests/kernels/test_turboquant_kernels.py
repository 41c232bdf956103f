"""The kernel texts, run on the CPU lane by lane, against attention in plain MLX ops.

The very bodies that Metal and CUDA compile are compiled as C++ (shim/); grids, templates and names
come from the launch code that a GPU would get. Storage beyond the counts is poisoned in every case.
"""

from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
import pytest
from kernels.shim.build import Options, compiler, is_zig
from kernels.shim.run import Runner

from swiftlm_engine.turboquant import attention
from swiftlm_engine.turboquant.backend import PlainBackend
from swiftlm_engine.turboquant.codec import codec
from swiftlm_engine.turboquant.formats import K4V3, K4V4, K8V3, SPEC, SPEC_SRHT, KVFormat
from swiftlm_engine.turboquant.kernels import dialect
from swiftlm_engine.turboquant.kernels.launch import KernelBackend
from swiftlm_engine.turboquant.sequence import SequenceKV

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(compiler() is None, reason="needs clang++ 16 or later, or ziglang"),
]

# One page, page and segment edges, two segments and a bit; 1100 fills the exact zone to its end.
LENGTHS = [132, 196, 579, 580, 643, 1091]


@dataclass(frozen=True)
class Case:
    dialect: str
    format: KVFormat
    dim: int
    group: int
    heads: int = 1

    def __str__(self) -> str:
        return f"{self.dialect}-{self.format.name}-d{self.dim}-g{self.group}"


CASES = [
    Case("metal", K4V3, 64, 1, 2),
    Case("metal", K4V3, 80, 7),
    Case("metal", K4V3, 96, 4),
    Case("metal", K4V3, 128, 4, 2),
    Case("metal", K4V3, 128, 8),
    Case("metal", K4V3, 256, 16),
    Case("metal", K4V3, 512, 5),
    Case("metal", SPEC, 128, 4),
    Case("metal", K8V3, 128, 4),
    Case("metal", K8V3, 64, 8),
    Case("metal", K4V4, 64, 2),
    Case("metal", K4V4, 64, 5),
    Case("cuda", K4V3, 64, 7, 2),
    Case("cuda", K4V3, 128, 4, 2),
    Case("cuda", SPEC, 128, 8),
    Case("cuda", K4V3, 256, 16),
    Case("cuda", K8V3, 128, 4),
    Case("cuda", K4V3, 80, 5),
]


class EmulatedBackend(KernelBackend):
    """The real launch code over the CPU runner of one dialect."""

    def __init__(self, name: str, options: Options, table: bool) -> None:
        self.runner = Runner(name, options)
        words = dialect.metal() if name == "metal" else dialect.cuda()
        super().__init__(
            replace(words, compiler=self.runner.compiler),
            table_in_memory=table,
            parallel_groups=3,
        )


def kernels(name: str, options: Options | None = None, table: bool = False) -> EmulatedBackend:
    return EmulatedBackend(name, options or Options(), table)


def storage(
    case: Case, backend: EmulatedBackend, length: int, dtype=mx.float16, encode=None
) -> tuple[SequenceKV, mx.array]:
    """Storage of `length` tokens and three queries; encoded by plain ops unless said."""
    mx.random.seed(length)
    bias = 2 * mx.random.normal((case.heads, 1, case.dim))
    keys = (mx.random.normal((case.heads, length, case.dim)) + bias).astype(dtype)
    values = mx.random.normal((case.heads, length, case.dim)).astype(dtype)
    queries = mx.random.normal((case.heads * case.group, 3, case.dim)).astype(dtype)
    order = backend.key_order(case.format, case.dim)
    kv = SequenceKV(codec(case.format, case.dim, order))
    kv.append(keys, values)
    kv.flush(queries, encode or PlainBackend().encode)
    poison(kv)
    return kv, queries


def poison(kv: SequenceKV) -> None:
    kv.settled()[:, :, kv.num_exact :] = float("nan")
    room = [mx.full((a.shape[0], 2, *a.shape[2:]), stale(a), a.dtype) for a in kv.pages.arrays()]
    arrays = [
        mx.concatenate([a[:, : kv.num_pages], more], 1)
        for a, more in zip(kv.pages.arrays(), room, strict=True)
    ]
    kv.pages = type(kv.pages)(*arrays)


def stale(array: mx.array) -> float | int:
    return 2**32 - 1 if array.dtype == mx.uint32 else float("nan")


def relative(got: mx.array, wanted: mx.array) -> float:
    a, b = (np.array(x.astype(mx.float32), np.float64) for x in (got, wanted))
    assert np.isfinite(a).all(), "something was not written, or poison was read"
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def tolerance(case: Case) -> float:
    # int8 queries and fp16 weights in the CUDA matrix form; elsewhere the fp16 output's rounding.
    matrix = case.dialect == "cuda" and case.format in (K4V3, SPEC) and case.dim in (64, 128, 256)
    return 1e-3 if matrix else 2e-4


@pytest.mark.parametrize("case", CASES, ids=str)
def test_decode_equals_plain_attention_at_every_edge(case: Case):
    backend = kernels(case.dialect)
    for length in LENGTHS[:3] if case.dim > 256 else LENGTHS:
        kv, queries = storage(case, backend, length)
        query = queries[:, :1]
        wanted = attention.attend(kv, query, case.dim**-0.5)
        assert relative(backend.attend(kv, query, case.dim**-0.5), wanted) < tolerance(case)


@pytest.mark.parametrize("case", [CASES[3], CASES[4], CASES[13], CASES[17]], ids=str)
def test_decode_writes_the_new_tokens_into_the_exact_zone_itself(case: Case):
    backend = kernels(case.dialect)
    kv, queries = storage(case, backend, 600)
    plain = kv.fork()
    for rows in (1, 1, 3):
        keys, values = mx.random.normal((2, case.heads, rows, case.dim)).astype(mx.float16)
        query = queries[None, :, :rows]
        for held in (kv, plain):
            held.append(keys[None], values[None])
        assert kv.num_fresh == rows
        got = backend.attend(kv, query, 0.1)
        assert kv.num_fresh == 0, "nobody wrote it"
        assert relative(got, attention.attend(plain, query, 0.1)) < tolerance(case)
    assert len(backend.runner.threads) == 2, "a decode step is two kernels"
    exact = slice(None), slice(None), slice(kv.num_exact)
    assert mx.array_equal(kv.zone[exact], plain.settled()[exact])


def test_decode_table_in_threadgroup_memory_gives_the_same():
    case = Case("metal", K4V3, 128, 4, 2)
    backend, other = kernels("metal"), kernels("metal", table=True)
    kv, queries = storage(case, backend, 580)
    a, b = (x.attend(kv, queries[:, :1], 0.1) for x in (backend, other))
    assert mx.array_equal(a, b)


def test_several_queries_see_only_their_past():
    case = Case("metal", K4V3, 128, 4, 2)
    backend = kernels("metal")
    kv, queries = storage(case, backend, 600)
    assert relative(backend.attend(kv, queries, 0.1), attention.attend(kv, queries, 0.1)) < 2e-4


def test_trimmed_pages_are_not_read():
    case = Case("metal", K4V3, 128, 4, 2)
    backend = kernels("metal")
    kv, queries = storage(case, backend, 1091)
    kv.trim(300)
    poison(kv)
    query = queries[:, :1]
    assert relative(backend.attend(kv, query, 0.1), attention.attend(kv, query, 0.1)) < 2e-4


def test_unfilled_splits_and_many_segments_merge_to_the_same():
    case = Case("metal", K4V3, 64, 1, 2)
    kv, queries = storage(case, kernels("metal"), 1091)
    query = queries[:, :1]
    wanted = attention.attend(kv, query, 0.125)
    for groups in (1, 64):
        backend = kernels("metal")
        backend.parallel_groups = groups
        assert relative(backend.attend(kv, query, 0.125), wanted) < 2e-4


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_exact_zone_may_have_any_dtype(dtype: mx.Dtype):
    case = Case("metal", K4V3, 64, 1, 2)
    backend = kernels("metal")
    kv, queries = storage(case, backend, 300, dtype)
    query = queries[:, :1]
    wanted = attention.attend(kv, query, 0.125)
    assert relative(backend.attend(kv, query, 0.125), wanted) < (
        1e-5 if dtype == mx.float32 else 5e-3
    )


ENCODED = [
    Case("metal", K4V3, 64, 2, 2),
    Case("metal", SPEC, 128, 2),
    Case("metal", K8V3, 128, 2),
    Case("metal", K4V4, 256, 2),
    Case("metal", K8V3, 512, 2),
    Case("cuda", K4V3, 128, 2, 2),
    Case("cuda", SPEC, 64, 2),
]


@pytest.mark.parametrize("case", ENCODED, ids=str)
def test_encode_gives_the_codes_of_the_plain_codec(case: Case):
    backend = kernels(case.dialect)
    plain, _ = storage(case, backend, 800)
    coded, _ = storage(case, backend, 800, encode=backend.encode)
    for got, wanted in zip(coded.pages.arrays(), plain.pages.arrays(), strict=True):
        got, wanted = (x[:, : plain.num_pages] for x in (got, wanted))
        if got.dtype == mx.uint32:  # ties may fall to either side
            assert mx.mean((got != wanted).astype(mx.float32)).item() < 2e-3
        else:
            off = mx.abs(got.astype(mx.float32) / wanted.astype(mx.float32) - 1)
            assert mx.max(off).item() < 2e-2
            assert mx.mean(off).item() < 1e-3


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, 60000.0, 1e-7])
def test_encode_makes_no_nan_of_bad_input(bad: float):
    backend = kernels("metal")
    kv = SequenceKV(codec(K4V3, 64))
    keys = mx.random.normal((2, 400, 64)).astype(mx.float16)
    keys[:, 100:110] = bad
    kv.append(keys, keys)
    kv.flush(mx.random.normal((4, 3, 64)), backend.encode)
    assert all(mx.all(mx.isfinite(x)) for x in kv.expand())


@pytest.mark.parametrize("case", [*ENCODED, Case("cuda", SPEC, 256, 2)], ids=str)
def test_expand_gives_every_token_in_order(case: Case):
    backend = kernels(case.dialect)
    kv, _ = storage(case, backend, 700)
    for got, wanted in zip(backend.expand(kv), kv.keys_and_values(), strict=True):
        assert got.shape == (case.heads, 700, case.dim)
        assert relative(got, wanted) < 1e-3


def test_format_without_kernels_falls_to_plain_ops_and_says_the_same():
    case = Case("metal", SPEC_SRHT, 64, 2)
    backend = kernels("metal")
    kv, queries = storage(case, backend, 300)
    a, b = backend.attend(kv, queries, 0.1), attention.attend(kv, queries, 0.1)
    assert mx.array_equal(a, b)
    assert backend.runner.threads == {}


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
@pytest.mark.parametrize(
    "case",
    [
        Case("metal", K4V3, 64, 4),
        Case("metal", K4V3, 64, 8),
        Case("metal", K4V3, 80, 5),
        Case("cuda", K4V3, 64, 7),
    ],
    ids=str,
)
def test_kernels_are_clean_under_the_sanitizers(case: Case, sanitizer: str):
    if sanitizer == "address" and is_zig():
        pytest.skip("zig has no AddressSanitizer")
    backend = kernels(case.dialect, Options(sanitize=sanitizer, spaces=False, timeout_s=200))
    kv, queries = storage(case, backend, 644)
    query = queries[:, :1]
    wanted = attention.attend(kv, query, 0.125)
    assert relative(backend.attend(kv, query, 0.125), wanted) < 1e-3
    if case.dim == 64 and case.group in (4, 7):
        backend.encode(kv, 1)
        backend.expand(kv)


def test_threads_and_shared_memory_stay_within_what_metal_has():
    seen = {}
    for case in (Case("metal", K4V3, 128, 8), Case("metal", K4V3, 256, 16)):
        backend = kernels("metal")
        kv, queries = storage(case, backend, 132)
        backend.attend(kv, queries[:, :1], 0.1)
        seen |= backend.runner.shared_bytes
        assert max(backend.runner.threads.values()) <= 512
    assert max(seen.values()) <= 32768
