"""What the planner derives from files, held against the library: every class of mlx-lm.

Nothing is evaluated but the weights that are written: caches' arrays have their shapes, and so
their bytes, before that.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny_models
from every_class import build, class_names, make_class
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from swiftlm_engine.brain.facts import KvFormat, ModelFacts, read_model
from swiftlm_engine.brain.facts.families import _NO_GROUPS, _RULES
from swiftlm_engine.turboquant.build import model_verdict

NAMES = class_names()
# Priced as plain attention, with a warning in the plan: its caches are a class of their own.
ASSUMED = {
    "deepseek_v41": "windows and compressed blocks in one cache",
    "minimax_m3_vl": "an indexer's keys in layers of sparse attention",
}
# Prompt and answer: below, at and beyond windows (32) and growth strides (256).
SPLITS = [(7, 3), (40, 2), (300, 1)]
MORE_SPLITS = [(31, 2), (32, 1), (33, 1), (255, 2), (256, 1), (257, 1), (520, 3)]


def listed(name: str) -> Any:
    """Classes without a rule of their own, and those of test_facts_caches.py, are run seldom."""
    seldom = name in tiny_models.CONFIGS or not (_RULES.keys() | _NO_GROUPS) & {name}
    return pytest.param(name, marks=pytest.mark.slow if seldom else ())


@pytest.fixture(scope="module", params=[listed(name) for name in NAMES])
def known(request: Any, tmp_path_factory: Any) -> tuple[str, Any, ModelFacts]:
    """A class, one of its models, and the facts of a folder that holds it."""
    name = request.param
    folder = make_class(name, tmp_path_factory.mktemp(re.sub(r"\W", "", name)))
    model = build(name, tie_word_embeddings=False)
    return name, model, read_model(folder)


def held(model: Any, prompt: int, generated: int) -> int:
    caches = make_prompt_cache(model)
    model(mx.full((1, prompt), 5), cache=caches)
    for _ in range(generated):
        model(mx.full((1, 1), 5), cache=caches)
    return sum(cache.nbytes for cache in caches)


def test_weights_are_those_of_the_class(known: tuple[str, Any, ModelFacts]) -> None:
    _, model, facts = known
    loaded = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    assert facts.weights.resident_bytes(None) == loaded
    assert len(facts.layers) == len(model.layers)


@pytest.mark.parametrize(
    "splits", [SPLITS, pytest.param(MORE_SPLITS, marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize("dtype", [mx.bfloat16, pytest.param(mx.float32, marks=pytest.mark.slow)])
def test_caches_hold_what_the_plan_says(
    known: tuple[str, Any, ModelFacts], splits: list[tuple[int, int]], dtype: mx.Dtype
) -> None:
    name, model, facts = known
    assert facts.kv_assumed == (name in ASSUMED)
    model.set_dtype(dtype)
    for prompt, generated in splits:
        real = held(model, prompt, generated)
        priced = facts.kv_bytes(prompt, generated, dtype=str(dtype).removeprefix("mlx.core."))
        if name in ASSUMED:
            assert real <= priced
        else:
            assert priced == real, (prompt, generated)


def test_layers_that_are_compressed_are_those_of_the_engine(
    known: tuple[str, Any, ModelFacts],
) -> None:
    _, model, facts = known
    verdict = model_verdict(model, "k4v3")
    assert facts.compressed_layers(KvFormat.K4V3) == verdict.num_compressed_layers


def test_heads_and_vocabulary_are_those_that_the_weights_have(
    known: tuple[str, Any, ModelFacts],
) -> None:
    _, model, facts = known
    logits = model(mx.full((1, 2), 5))
    assert logits.shape[-1] == facts.shape.vocab_size


def test_layers_that_share_kv_across_are_not_taken_for_compressible(tmp_path: Path) -> None:
    folder = make_class("hunyuan", tmp_path)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"use_cla": True}))
    model = build("hunyuan", use_cla=True)
    verdict = model_verdict(model, "k4v3")
    facts = read_model(folder)
    assert facts.compressed_layers(KvFormat.K4V3) == verdict.num_compressed_layers == 0
