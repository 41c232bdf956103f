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


@pytest.mark.parametrize("tokens", [512, 513, 1025])
def test_no_input_is_small_enough_for_a_kernel_of_another_name(
    monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    """MLX on Metal compiles inputs of fewer than eight elements into a kernel of their own."""
    sizes: dict[str, set[int]] = {}

    def metal_kernel(**words: object) -> object:
        def launched(**call: object) -> list[mx.array]:
            for name, array in zip(words["input_names"], call["inputs"], strict=True):
                sizes.setdefault(name, set()).add(array.size)
            shapes = zip(call["output_shapes"], call["output_dtypes"], strict=True)
            return [mx.zeros(shape, dtype) for shape, dtype in shapes]

        return launched

    monkeypatch.setattr(dialect.mx.fast, "metal_kernel", metal_kernel)
    backend = launch.KernelBackend(dialect.metal(), parallel_groups=64)
    kv = SequenceKV(codec(K4V3, DIM, backend.key_order(K4V3, DIM)))
    for chunk in (tokens, 1, 40):
        fresh = mx.random.normal((2, 2, chunk, DIM))
        kv.append(fresh[0], fresh[1])
        queries = mx.random.normal((4, chunk, DIM))
        kv.flush(queries, backend.encode)
        backend.attend(kv, queries, 0.1)
    for pages in range(11):
        for counts in ((pages,), (pages, 1), (pages, 0, 0)):
            assert backend._count(*counts).size >= 8
            assert backend._count(*counts).shape[: len(counts)] == tuple(n + 1 for n in counts)
    assert {"first", "pages", "tokens", "ez"} <= sizes.keys(), "not every kernel was launched"
    assert {name: min(found) for name, found in sizes.items() if min(found) < 8} == {}
