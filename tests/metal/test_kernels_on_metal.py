"""The Metal kernels against their plain twins, on a real GPU: `pytest -m metal tests/metal`."""

from __future__ import annotations

import sys

import mlx.core as mx
import pytest

from swiftlm_engine.turboquant import attention
from swiftlm_engine.turboquant.codec import codec
from swiftlm_engine.turboquant.encoder import encode_plain
from swiftlm_engine.turboquant.formats import K4V3
from swiftlm_engine.turboquant.kernels.launch import metal_backend
from swiftlm_engine.turboquant.sequence import SequenceKV

pytestmark = [
    pytest.mark.metal,
    pytest.mark.skipif(sys.platform != "darwin", reason="needs an Apple GPU"),
]
_HEADS, _GROUP = 2, 4


def sequence(dim: int, tokens: int) -> SequenceKV:
    mx.random.seed(dim + tokens)
    kv = SequenceKV(codec(K4V3, dim, metal_backend().key_order(K4V3, dim)))
    fresh = mx.random.normal((2, _HEADS, tokens, dim)).astype(mx.float16)
    kv.append(fresh[0], fresh[1])
    kv.flush(mx.random.normal((_HEADS * _GROUP, tokens, dim)).astype(mx.float16), encode_plain)
    return kv


def error(found: mx.array, wanted: mx.array) -> float:
    apart = mx.abs(found.astype(mx.float32) - wanted.astype(mx.float32)).max()
    return float(apart / mx.abs(wanted.astype(mx.float32)).max())


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("tokens", [300, 700, 2100])
def test_decode_attends_as_plain_ops_do(dim: int, tokens: int) -> None:
    kv = sequence(dim, tokens)
    query = mx.random.normal((_HEADS * _GROUP, 1, dim)).astype(mx.float16)
    scale = dim**-0.5
    wanted = attention.attend(kv, query, scale)
    assert error(metal_backend().attend(kv, query, scale), wanted) < 5e-3
    # The comparison can fail: another scale is not the same attention.
    assert error(metal_backend().attend(kv, query, 2 * scale), wanted) > 5e-3


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_expanded_pages_are_those_of_plain_ops(dim: int) -> None:
    kv = sequence(dim, 700)
    for found, wanted in zip(metal_backend().expand(kv), kv.keys_and_values(), strict=True):
        assert error(found, wanted) < 5e-3


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_encoded_pages_expand_as_those_of_plain_ops(dim: int) -> None:
    kv, twin = sequence(dim, 300), sequence(dim, 300)
    fresh = mx.random.normal((2, _HEADS, 300, dim)).astype(mx.float16)
    queries = mx.random.normal((_HEADS * _GROUP, 300, dim)).astype(mx.float16)
    for each, encode in ((kv, metal_backend().encode), (twin, encode_plain)):
        each.append(fresh[0], fresh[1])
        each.flush(queries, encode)
    for found, wanted in zip(kv.keys_and_values(), twin.keys_and_values(), strict=True):
        assert error(found, wanted) < 5e-3
