"""Rows of unequal length that decode together: the text of a lone row, in the bytes of its own.

Invariants: the logits of a row are those it has alone; a batch holds what its rows hold alone; a
join copies no KV of rows that are there.
"""

from __future__ import annotations

import mlx.core as mx
import pytest
from engine_harness import EngineHarness
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.utils import load
from tiny_models import NAMES, make_model

from swiftlm_engine import turboquant
from swiftlm_engine.kv.shared_cache import Sharing, shared_caches
from swiftlm_engine.messages import GenerateJob
from swiftlm_engine.run.row_caches import Caches, RowCaches
from swiftlm_engine.run.unpadded_cache import UnpaddedCache
from swiftlm_engine.sampling.settings import SamplingSettings

pytestmark = pytest.mark.usefixtures("on_the_cpu")

LENGTHS = (3, 300, 17, 270)
STEPS = 4
# Of the logits. Equal to the bit with MLX's own products; a BLAS takes other kernels for few rows.
TOLERANCE = 1e-4


def loaded(name: str, folder):
    model = load(str(make_model(name, folder)))[0]
    turboquant.install(model)
    return model


def prefilled(model, length: int) -> Caches:
    caches = make_prompt_cache(model)
    model(mx.arange(1, length + 1)[None] % 60, cache=caches)
    mx.eval([c.state for c in caches if not c.empty()])
    return caches


def nbytes(caches: Caches) -> int:
    return sum(cache.nbytes for cache in caches)


def alone(model, length: int, token: int) -> list[mx.array]:
    """Logits after `token`, and after the ones behind it."""
    caches = prefilled(model, length)
    return [model(mx.array([[token + i]]), cache=caches)[0, -1] for i in range(STEPS)]


def same(found: mx.array, expected: mx.array) -> bool:
    return mx.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE).item()


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_every_family_have_the_logits_they_have_alone(name, tmp_path) -> None:
    model = loaded(name, tmp_path)
    expected = [alone(model, length, 5 + i) for i, length in enumerate(LENGTHS)]
    for prefers_padding in (False, True):
        rows = RowCaches(unpadded=True, prefers_padding=prefers_padding)
        rows.extend([prefilled(model, length) for length in LENGTHS[:3]])
        rows.add(prefilled(model, LENGTHS[3]))
        inputs = mx.arange(5, 5 + len(LENGTHS))
        for step in range(STEPS):
            logits = rows.forward(model, inputs)
            for i in range(len(LENGTHS)):
                assert same(logits[i], expected[i][step]), (name, i, step)
            inputs = inputs + 1


def test_a_batch_holds_what_its_rows_hold_alone_and_a_join_copies_nothing(tmp_path) -> None:
    model = loaded("llama", tmp_path)
    first, others = prefilled(model, 1000), [prefilled(model, 3) for _ in range(7)]
    held = nbytes(first) + sum(map(nbytes, others))
    keys = first[0].keys
    rows = RowCaches(unpadded=True)
    rows.add(first)
    rows.extend(others)
    assert nbytes(rows.all()[0]) == held
    assert isinstance(rows.all()[0][0], UnpaddedCache)
    [leaving] = rows.remove_all([0])
    assert leaving[0].keys is keys
    assert nbytes(rows.all()[0]) == held - nbytes(first)


def test_padded_rows_are_parted_when_a_much_longer_one_joins(tmp_path) -> None:
    model = loaded("llama", tmp_path)
    rows = RowCaches(unpadded=True, prefers_padding=True)
    rows.extend([prefilled(model, 30), prefilled(model, 33)])
    assert not isinstance(rows.all()[0][0], UnpaddedCache)
    rows.add(prefilled(model, 2000))
    assert isinstance(rows.all()[0][0], UnpaddedCache)
    expected = alone(model, 33, 6)
    inputs = mx.array([5, 6, 7])
    for step in range(STEPS):
        logits = rows.forward(model, inputs)
        assert same(logits[1], expected[step])
        inputs = inputs + 1


def test_short_rows_of_any_length_are_padded_within_the_steps_of_their_buffers(tmp_path) -> None:
    """Row by row, 32 of them took three times as long on the CPU back end."""
    model, sharing = loaded("llama", tmp_path), Sharing(min_tokens=64)

    def shared(length: int) -> Caches:
        caches = shared_caches(make_prompt_cache(model), sharing)
        model(mx.arange(1, length + 1)[None] % 60, cache=caches)
        return caches

    lengths = (3, 200, 40, 90)
    rows = RowCaches(unpadded=True, prefers_padding=True)
    for length in lengths:
        rows.add(shared(length))
    assert not isinstance(rows.all()[0][0], UnpaddedCache)
    assert rows.nbytes <= sum(nbytes(shared(length)) for length in lengths)
    expected = [alone(model, length, 5 + i) for i, length in enumerate(lengths)]
    logits = rows.forward(model, mx.arange(5, 9))
    assert all(same(logits[i], expected[i][0]) for i in range(4))
    assert rows.nbytes <= sum(nbytes(shared(length + 1)) for length in lengths)
    rows.add(shared(300))  # a step more: what the others would be padded by is priced by nobody
    assert isinstance(rows.all()[0][0], UnpaddedCache)


def test_a_model_that_computes_with_its_keys_falls_back_before_any_text_is_wrong() -> None:
    class Computing:
        def __call__(self, inputs: mx.array, cache: Caches) -> mx.array:
            new = mx.ones((inputs.shape[0], 1, 1, 4)) * inputs[:, :, None, None]
            keys, _ = cache[0].update_and_fetch(new, new)
            return mx.sum(keys * 2, axis=2)  # (B, 1, 4): no attention of mlx-lm's

    def row(length: int) -> Caches:
        cache = KVCache()
        cache.update_and_fetch(mx.ones((1, 1, length, 4)), mx.ones((1, 1, length, 4)))
        return [cache]

    rows = RowCaches(unpadded=True, prefers_padding=False)
    rows.extend([row(3), row(600)])
    logits = rows.forward(Computing(), mx.array([1, 1]))
    assert logits[:, 0].tolist() == [8.0, 1202.0]
    held = sum(nbytes(caches) for caches in rows.all())
    assert held == sum(nbytes(row(n)) for n in (4, 601))  # one by one: nobody is padded to 600


def test_mixed_batch_never_holds_more_than_was_reserved(tmp_path) -> None:
    """One prompt of a whole context and fifteen of a few tokens, at a budget of four contexts."""
    folder = make_model("llama", tmp_path, max_position_embeddings=4096)
    context = 2048
    options = {"context": context, "parallel": 16, "dtype": "float32", "kv": "fp16"}
    with EngineHarness(folder, **options, kv_budget_bytes=1 << 30) as probe:
        budget = 4 * probe.session.engine.scheduler._price(context - 8, 8)
    with EngineHarness(folder, **options, kv_budget_bytes=budget) as engine:
        batch, seen = engine.session.runner.batch, []
        step = batch.step

        def watched():
            found = step()
            seen.append(
                (batch.caches_nbytes(), engine.session.engine.scheduler._gate.reserved_bytes)
            )
            return found

        batch.step = watched
        greedy = SamplingSettings(temperature=0.0)
        long = GenerateJob("long", "the quick brown fox " * 400, greedy, max_tokens=40)
        short = [GenerateJob(f"s{i}", "hello world", greedy, max_tokens=40) for i in range(15)]
        engine.run(long, *short)
    assert max(held for held, _ in seen) > 0
    assert [pair for pair in seen if pair[0] > 1.02 * pair[1]] == []
