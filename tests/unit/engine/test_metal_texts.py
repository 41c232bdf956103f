"""Every Metal text that can be generated, held against what Metal refuses; nothing is compiled."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from swiftlm_engine.turboquant.codec import codec
from swiftlm_engine.turboquant.formats import K4V3, K4V4, K8V3, SPEC, KVFormat
from swiftlm_engine.turboquant.kernels import dialect
from swiftlm_engine.turboquant.kernels.encode import ENCODE
from swiftlm_engine.turboquant.kernels.expand import EXPAND
from swiftlm_engine.turboquant.kernels.launch import KernelBackend
from swiftlm_engine.turboquant.kernels.merge import MERGE

_BUFFERS, _THREADS, _TEXT_BYTES = 31, 1024, 32 * 1024
# Names that mean something in the Metal Shading Language (specification 3.2, and metal_stdlib).
_WORDS = """
access_qualifier array bfloat buffer constant depth2d device fragment half intersector kernel matrix
mesh object_data patch payload ray_data sampler texture texture1d texture2d texture3d texturecube
thread threadgroup threadgroup_imageblock uniform vec vertex visible
"""
_RESERVED = frozenset(_WORDS.split())
# Of C++17 and later, and what MSL's C++14 leaves out.
_REFUSED = (
    r"\bdouble\b", r"\bif constexpr\b", r"\bauto \[", r"\bgoto\b", r"\bstatic\b", r"\btry\b",
    r"\bthrow\b", r"\bdynamic_cast\b", r"\bnew\b", r"\bvirtual\b", r"\bthread_local\b",
    r"\[[&=]\]", r"\binline static\b", r"\bstd::", r"\blong double\b", r"\btypeid\b",
)  # fmt: skip

Words = dict[str, object]


def texts(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Words, int]]:
    """What MLX is given, and with how many threads per threadgroup it is launched."""
    given: list[Words] = []
    monkeypatch.setattr(dialect.mx.fast, "metal_kernel", lambda **words: given.append(words))
    backend = KernelBackend(dialect.metal(), parallel_groups=64)

    def made(*how: object) -> Words:
        given.clear()
        backend._kernels.clear()
        backend._kernel(*how)
        return given[0]

    formats: tuple[KVFormat, ...] = (K4V3, SPEC, K8V3, K4V4)
    for format, dim in itertools.product(formats, (64, 80, 512)):
        known = codec(format, dim, backend.key_order(format, dim))
        yield made(ENCODE, known, 1.0), 256
        yield made(EXPAND, known, 1.0), 256
        for group, table, append in itertools.product((1, 8, 16), (False, True), (False, True)):
            backend.table_in_memory = table
            text, shape = backend._choose(known, group)
            sizes = backend._sizes(text, shape, append)
            yield made(text, known, 0.1, sizes), shape.warps * 32
            warps = min(16, 2048 // max(dim, 128))
            merged = {"G": shape.group, "NW": warps, "TURN": int(shape.turn)}
            yield made(MERGE, known, 0.1, merged), warps * 32


def num_buffers(words: Words) -> int:
    """As MLX writes the signature: each array, and what the source names of its shape."""
    source, inputs, outputs = words["source"], words["input_names"], words["output_names"]
    extras = [f"{name}_{part}" for name in inputs for part in ("shape", "strides", "ndim")]
    return len(inputs) + len(outputs) + sum(extra in source for extra in extras)


def declared(text: str) -> set[str]:
    """Names that the text gives to variables, functions and parameters."""
    kinds = r"(?:int|uint|u32|float|half|bool|long|ushort|uchar|float2|float4|uint4|auto)"
    return set(re.findall(rf"\b{kinds}\b[ *&]+(\w+)", text))


def test_no_text_holds_what_metal_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = 0
    for words, threads in texts(monkeypatch):
        text = f"{words['header']}{words['source']}"
        text.encode("ascii")  # MLX makes an NSString of it as ASCII, and ends where that fails
        assert len(text) <= _TEXT_BYTES
        assert num_buffers(words) <= _BUFFERS
        assert threads <= _THREADS
        assert threads % 32 == 0
        names = {*words["input_names"], *words["output_names"], *declared(text)}
        assert not names & _RESERVED
        found = [pattern for pattern in _REFUSED if re.search(pattern, text)]
        assert not found, words["name"]
        seen += 1
    assert seen > 300


@pytest.mark.parametrize(
    "body", ["double x=0;", "auto f=[&](int i){return i;};", "static int k;", "if constexpr(true)"]
)
def test_the_patterns_find_what_metal_refuses(body: str) -> None:
    assert any(re.search(pattern, body) for pattern in _REFUSED)


def test_a_reserved_name_would_be_found() -> None:
    assert declared("const int kernel = 3; float half2 = 1;") & _RESERVED == {"kernel"}
