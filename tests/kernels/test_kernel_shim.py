"""The shim finds what it is there to find: races, stuck barriers, wrong spaces, limits."""

import mlx.core as mx
import numpy as np
import pytest
from kernels.shim.build import Options, compiler, is_zig
from kernels.shim.run import Runner
from kernels.shim.signature import ShimError

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(compiler() is None, reason="needs clang++ 16 or later, or ziglang"),
]

INDEX = "uint i = thread_position_in_threadgroup.x, l = thread_index_in_simdgroup; (void)l; "
SHARED = INDEX + "threadgroup float a[64]; a[i] = x[i]; "
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup); "
X = mx.arange(64).astype(mx.float32)


def run(source: str, x: mx.array = X, threads: int = 64, **options) -> np.ndarray:
    kernel = Runner("metal", Options(**options)).compiler("t_shim", ["x"], ["o"], source)
    out = kernel(
        inputs=[x],
        output_shapes=[(64,)],
        output_dtypes=[mx.float32],
        grid=(max(64, threads), 1, 1),
        threadgroup=(threads, 1, 1),
    )
    return np.array(out[0])


def test_right_kernel_runs():
    out = run(SHARED + BARRIER + "o[i] = a[63 - i] + simd_shuffle_xor(x[i], 1) + simd_max(x[i]);")
    i = np.arange(64)
    assert (out == 63 - i + (i ^ 1) + (i | 31)).all()


@pytest.mark.parametrize(
    ("kind", "word", "source"),
    [
        ("launch", "stuck", SHARED + "if (i < 40) {" + BARRIER + "} o[i] = a[i];"),
        ("launch", "stuck", INDEX + "if (l < 7) return; o[i] = simd_sum(x[i]);"),
        (
            "launch",
            "diverged",
            SHARED + "if (i < 40) {" + BARRIER + "} else {\n" + BARRIER + "} o[i] = a[i];",
        ),
        ("address space", "cannot initialize", SHARED + "device float* p = a + i; o[i] = *p;"),
        ("lint", "address space", INDEX + "const float* p = x; o[i] = p[i];"),
        ("lint", "double", INDEX + "double d = x[i]; o[i] = d;"),
        ("lint", "__syncthreads", INDEX + "__syncthreads(); o[i] = x[i];"),
        ("lint", "alignas", INDEX + "threadgroup alignas(16) float a[64]; a[i] = 0; o[i] = a[i];"),
        ("launch", "exceeds 32768", INDEX + "threadgroup float a[8193]; a[i] = x[i]; o[i] = a[i];"),
        ("compile", "undeclared", INDEX + "o[i] = x[i] * missing;"),
    ],
)
def test_wrong_kernel_is_refused(kind: str, word: str, source: str):
    with pytest.raises(ShimError, match=word) as error:
        run(source, spaces=kind != "compile")
    assert error.value.kind == kind


def test_too_many_threads_are_refused():
    with pytest.raises(ShimError, match="1024"):
        run(INDEX + "o[i] = 0;", threads=1025)


def test_small_inputs_live_in_constant_space():
    with pytest.raises(ShimError, match="address space"):
        run(INDEX + "const device float* p = x; o[i] = p[i & 3];", x=X[:4])


def test_shared_memory_is_poisoned():
    out = run(
        INDEX + "threadgroup float a[64]; if (i < 5) a[i] = x[i]; " + BARRIER + "o[i] = a[i];"
    )
    assert (out[:5] == np.arange(5)).all()
    assert np.isnan(out[5:]).all()


def test_missing_barrier_is_a_data_race():
    with pytest.raises(ShimError, match="data race"):
        run(SHARED + "o[i] = a[63 - i];", sanitize="thread")


def test_simd_op_is_no_barrier():
    with pytest.raises(ShimError, match="data race"):
        run(SHARED + "float s = simd_sum(x[i]); o[i] = a[i ^ 1] + s;", sanitize="thread")


def test_simdgroup_barrier_orders_a_simdgroup():
    source = SHARED + "simdgroup_barrier(mem_flags::mem_threadgroup); o[i] = a[i ^ 1];"
    assert run(source, sanitize="thread")[0] == 1


@pytest.mark.skipif(is_zig(), reason="zig has no AddressSanitizer")
def test_index_out_of_range_is_found():
    with pytest.raises(ShimError, match="heap-buffer-overflow"):
        run(INDEX + "o[i] = x[i + 1];", sanitize="address")


def test_simdgroup_matrices_multiply():
    source = """uint i = thread_index_in_simdgroup; (void)i;
    threadgroup float t[64];
    simdgroup_matrix<float, 8, 8> c(0.f), a, b;
    simdgroup_load(a, x, 8);
    simdgroup_load(b, x, 8, ulong2(0, 0), true);
    simdgroup_multiply_accumulate(c, a, b, c);
    simdgroup_store(c, t, 8);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    o[i] = t[i]; o[i + 32] = t[i + 32];"""
    x = np.arange(64, dtype=np.float32).reshape(8, 8) / 8
    out = run(source, x=mx.array(x.ravel()), threads=32)[:64]
    assert np.allclose(out, (x @ x.T).ravel(), rtol=1e-6)
