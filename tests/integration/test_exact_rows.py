"""`engine.exact`: what is installed, what a draft's rows compute, what the test at load finds."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest
from engine_harness import EngineHarness
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load
from tiny_models import make_model

from swiftlm_engine import turboquant
from swiftlm_engine.kv.draft_rows import draft_rows
from swiftlm_engine.kv.shared_cache import Sharing, shared_caches
from swiftlm_engine.linear import install
from swiftlm_engine.linear.products import ProductWeights, RowByRow, RowProducts
from swiftlm_engine.messages import GenerateJob
from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.session import exactness

pytestmark = pytest.mark.usefixtures("on_the_cpu")

GREEDY = SamplingSettings(temperature=0.0)
TOLERANCE = 1e-4


class PlainProducts(RowProducts):
    """Row by row in plain ops; notes how many rows each product had."""

    def __init__(self) -> None:
        self.widths: list[int] = []

    @staticmethod
    def fits(weights: ProductWeights, dtype: mx.Dtype) -> bool:
        return True

    def product(self, x: mx.array, weights: ProductWeights) -> mx.array:
        self.widths.append(x.size // x.shape[-1])
        return x @ plain(weights).T

    def gathered(self, x: mx.array, weights: ProductWeights, experts: mx.array) -> mx.array:
        self.widths.append(experts.size)
        each = mx.repeat(x, experts.size // x.shape[0], axis=0)
        return (plain(weights)[experts] @ each[:, :, None]).squeeze(-1)


def plain(weights: ProductWeights) -> mx.array:
    if weights.scales is None:
        return weights.weight
    packing = {"group_size": weights.group, "bits": weights.bits, "mode": weights.mode}
    return mx.dequantize(weights.weight, weights.scales, weights.biases, **packing)


def loaded(name: str, folder, **overrides):
    model = load(str(make_model(name, folder, **overrides)))[0]
    turboquant.install(model)
    return model


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("quantized", [True, False])
def test_installed_products_stand_in_for_a_models_own(name, quantized, tmp_path) -> None:
    model = loaded(name, tmp_path)
    if quantized:
        nn.quantize(model, group_size=32, bits=4)
    tokens = mx.array([[3], [4], [5]])
    expected, products = model(tokens), PlainProducts()
    assert install.install(model, products) > 4
    assert mx.allclose(model(tokens), expected, rtol=1e-3, atol=1e-3).item()
    assert products.widths
    products.widths.clear()
    model(mx.arange(40)[None])  # a prompt is left to MLX
    assert not products.widths or "moe" in name
    install.remove(model)
    assert mx.array_equal(model(tokens), expected)


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_row_by_row_each_row_has_the_bits_it_has_alone(name, tmp_path) -> None:
    model = loaded(name, tmp_path)
    nn.quantize(model, group_size=32, bits=4)
    install.install(model, RowByRow())
    tokens = mx.array([[3], [4], [5], [6]])
    alone = mx.concatenate([model(tokens[i : i + 1]) for i in range(4)])
    assert mx.array_equal(model(tokens), alone)
    install.remove(model)
    assert mx.allclose(model(tokens), alone, rtol=1e-3, atol=1e-3).item()


def test_every_number_of_tiles_is_compiled_before_a_request_needs_it(tmp_path) -> None:
    model, products = loaded("llama", tmp_path), PlainProducts()
    install.install(model, products)
    install.warm(model, mx.float32, 16)
    assert set(products.widths) == {1, 9}


def test_a_shape_that_mlx_computes_faster_alone_is_left_to_it_for_lone_rows(tmp_path) -> None:
    class Slow(PlainProducts):
        def product(self, x: mx.array, weights: ProductWeights) -> mx.array:
            for _ in range(50):
                x = mx.sin(x)
            return super().product(x, weights)

    model = loaded("llama", tmp_path)
    products = Slow()
    install.install(model, products)
    install.keep_faster(model, mx.float32)
    products.widths.clear()
    model(mx.array([[3]]))
    assert products.widths == []
    model(mx.array([[3], [4]]))
    assert set(products.widths) == {2}


def test_the_rows_of_a_draft_have_the_logits_of_single_steps(tmp_path) -> None:
    model = loaded("llama", tmp_path)
    caches = shared_caches(make_prompt_cache(model), Sharing(64))
    model(mx.arange(70)[None] % 50, cache=caches)
    one_by_one = [cache.fork() for cache in caches]
    draft = mx.array([7, 8, 9, 10])
    steps = [model(draft[i : i + 1, None], cache=one_by_one)[0, -1] for i in range(4)]
    rows = draft_rows(caches, 4)
    assert rows is not None
    found = model(draft[:, None], cache=rows)[:, -1]
    assert mx.allclose(found, mx.stack(steps), rtol=TOLERANCE, atol=TOLERANCE).item()
    assert [cache.offset for cache in caches] == [74] * len(caches)


def test_drafts_change_no_text_where_rows_are_alike(tmp_path) -> None:
    folder = make_model("llama", tmp_path)
    job = GenerateJob("a", "the quick brown fox the quick", GREEDY, max_tokens=60, ignore_eos=True)
    said, drafted = set(), 0
    for draft in ("", "ngram"):
        with EngineHarness(folder, draft=draft) as engine:
            engine.session.runner.batch._alike = True
            engine.session.runner.batch._caches._alike = True
            answer = engine.run(job)[0]
            said.add(answer.content)
            drafted += answer.finished.timings.draft_tokens
    assert len(said) == 1
    assert drafted > 0


class Neighbourly:
    """A model whose rows see how many they are."""

    def __init__(self, model, from_width: int) -> None:
        self._model, self._from_width = model, from_width

    def __call__(self, inputs: mx.array, cache) -> mx.array:
        logits = self._model(inputs, cache=cache)
        return logits + 1 if len(inputs) >= self._from_width else logits


@pytest.mark.parametrize(("from_width", "differing"), [(99, []), (8, [8]), (2, [2, 4, 8])])
def test_the_test_at_load_names_the_widths_that_differ(from_width, differing, tmp_path) -> None:
    model = loaded("llama", tmp_path, num_hidden_layers=1)
    install.install(model, RowByRow())  # a BLAS sums four rows in another order than one
    seen = Neighbourly(model, from_width)
    make = lambda: shared_caches(make_prompt_cache(model), Sharing(64))  # noqa: E731  # short here
    assert exactness.differing_widths(seen, make, 50, alike=True) == differing


def test_a_model_that_cannot_be_tried_is_served_without(tmp_path) -> None:
    model = loaded("llama", tmp_path, num_hidden_layers=1)

    def broken() -> list:
        raise TypeError("no such cache")

    found = exactness.settle(model, broken, "on", 50, mx.float32, 16)
    assert not found.alike
    assert "no such cache" in found.note
    assert type(model.layers[0].self_attn.q_proj) is nn.Linear


def test_who_asks_for_exact_rows_is_told_what_was_found(tmp_path) -> None:
    folder = make_model("llama", tmp_path, num_hidden_layers=1)
    with EngineHarness(folder, exact="on") as engine:
        [note] = [note for note in engine.session.facts.notes if note.startswith("rows: ")]
        assert note.startswith("rows: the same bits at widths 1, 2, 4, 8")
    with EngineHarness(folder) as engine:
        assert not any(note.startswith("rows: ") for note in engine.session.facts.notes)
