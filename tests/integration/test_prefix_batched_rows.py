"""Prefixes stored from a row of a decode batch, as the engine stores them when one finishes."""

import mlx.core as mx
import pytest
import tiny_models
from families import EACH
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load
from prefix_runner import Runner, runner, tokens

from swiftlm_engine.brain.prefix_index import Kind
from swiftlm_engine.prefix.cache import Match

MERGEABLE = [one for one in EACH if one != "llama4"]  # chunked caches decode alone


pytestmark = pytest.mark.usefixtures("on_the_cpu")


@pytest.fixture(scope="module", params=MERGEABLE)
def model(request, tmp_path_factory):
    folder = tiny_models.make_model(request.param, tmp_path_factory.mktemp(request.param))
    return load(str(folder))[0]


def decode_together(model, prompts: list[list[int]], count: int) -> list[tuple[list[int], list]]:
    """Prefill one by one, decode as one batch; per row the tokens in its caches, and the caches."""
    singles = []
    for prompt in prompts:
        caches = make_prompt_cache(model)
        Runner(model)._prefill(prompt[:-1], caches)
        singles.append(caches)
    batch = merged(singles)
    rows = [list(prompt) for prompt in prompts]
    for _ in range(count):
        logits = model(mx.array([[row[-1]] for row in rows]), cache=batch)[:, -1]
        for row, token in zip(rows, mx.argmax(logits, axis=-1).tolist(), strict=True):
            row.append(token)
    return [(row[:-1], [cache.extract(i) for cache in batch]) for i, row in enumerate(rows)]


def merged(rows: list[list]) -> list:
    return [type(layer[0]).merge(list(layer)) for layer in zip(*rows, strict=True)]


def test_row_of_a_batch_is_stored_and_continued_like_a_cold_run(model):
    warm, cold = runner(model), Runner(model)
    rows = decode_together(model, [tokens(1, 130), tokens(2, 70)], count=8)
    for held, caches in rows:
        assert warm.cache.store(held, caches, Kind.TURN).value == "stored"
    for held, _ in rows:
        longer = held + tokens(3, 15)
        assert warm.generate(longer, store=False) == cold.generate(longer)
    assert warm.num_prefilled == 2 * 14


def test_eight_identical_hits_run_in_one_batch_and_leave_the_entry_as_it_was(model):
    warm, cold = runner(model), Runner(model)
    prompt = tokens(1, 100)
    warm.generate(prompt)
    hits = [warm.cache.match(prompt) for _ in range(8)]
    assert all(isinstance(hit, Match) and hit.length == 99 for hit in hits)
    batch = merged([hit.caches for hit in hits])
    rows = [[prompt[-1]] for _ in hits]
    for _ in range(12):
        logits = model(mx.array([[row[-1]] for row in rows]), cache=batch)[:, -1]
        for row, token in zip(rows, mx.argmax(logits, axis=-1).tolist(), strict=True):
            row.append(token)
    expected = cold.generate(prompt)
    assert [row[1:] for row in rows] == [expected] * 8
    assert warm.generate(prompt) == expected
    warm.cache.check_integrity()
