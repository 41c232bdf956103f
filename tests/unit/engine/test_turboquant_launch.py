"""What the launch code does around its kernels; no kernel runs here."""

import mlx.core as mx
import pytest

from swiftlm_engine.turboquant.codec import codec
from swiftlm_engine.turboquant.formats import K4V3
from swiftlm_engine.turboquant.kernels import dialect, launch
from swiftlm_engine.turboquant.sequence import SequenceKV

DIM = 64


def layer(backend: launch.KernelBackend, tokens: int) -> mx.array:
    """Attention of a new sequence's first tokens, none of them compressed yet."""
    kv = SequenceKV(codec(K4V3, DIM, backend.key_order(K4V3, DIM)))
    fresh = mx.random.normal((2, 2, tokens, DIM))
    kv.append(fresh[0], fresh[1])
    return backend.attend(kv, mx.random.normal((4, tokens, DIM)), 0.1)


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[mx.array]:
    arrays: list[mx.array] = []
    monkeypatch.setattr(launch.mx, "eval", arrays.append)
    return arrays


def test_prefill_waits_for_the_layer_before_the_one_it_starts(waited: list[mx.array]):
    backend = launch.KernelBackend(dialect.cuda())
    first, second = layer(backend, 80), layer(backend, 80)
    assert [id(array) for array in waited] == [id(first)]
    layer(backend, 80)
    assert [id(array) for array in waited] == [id(first), id(second)]


def test_decode_waits_for_nothing(waited: list[mx.array]):
    backend = launch.KernelBackend(dialect.cuda())
    for _ in range(3):
        layer(backend, 1)
    assert waited == []


def test_cuda_is_given_a_text_that_does_not_grow_with_the_kernel(monkeypatch: pytest.MonkeyPatch):
    given: dict[str, str] = {}
    monkeypatch.setattr(dialect.mx.fast, "cuda_kernel", lambda **words: given.update(words))
    text = dialect.Text("t", ("a", "b"), ("o",), "o[0] = a_shape[0];\n" * 1000)
    dialect.compiled(dialect.cuda(), text, "", {})
    assert len(given["source"]) + len(given["header"]) < 200
    assert "a_shape" in given["source"]  # MLX passes shapes only of the names that it finds
    assert "b_shape" not in given["source"]
    path = given["source"].split('"')[1]
    with open(path) as included:
        assert included.read().count("a_shape") == 1000
