"""Faults planted into the weights of a model that knows its texts: none gets past the self-test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load
from taught_head import taught_head
from tiny_models import make_model

from swiftlm_engine.messages import EngineFault, FaultKind
from swiftlm_engine.session.weights_check import TEXTS, check_sanity

VOCABULARY, HIDDEN, LAYERS = 4096, 256, 2
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Weights = dict[str, mx.array]
Plant = Callable[[Weights], Weights]


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Its head was fitted to tell from the last states what comes next in one text, and has an
    opinion on any other state, too."""
    folder = make_model(
        "gemma3_text",
        tmp_path_factory.mktemp("taught"),
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
    )
    model, tokenizer = load(str(folder))
    model.load_weights([(HEAD, taught_head(model, tokenizer, TEXTS[0], VOCABULARY))], strict=False)
    return model, tokenizer


def scaled(part: str, factor: float) -> Plant:
    return lambda weights: {n: w * factor for n, w in weights.items() if part in n}


def made(part: str, make: Callable[[mx.array], mx.array]) -> Plant:
    return lambda weights: {n: make(w) for n, w in weights.items() if part in n}


def swapped(one: str, other: str) -> Plant:
    def plant(weights: Weights) -> Weights:
        found = {n: weights[n.replace(one, other)] for n in weights if one in n}
        return found | {n: weights[n.replace(other, one)] for n in weights if other in n}

    return plant


def one_number(part: str, value: float) -> Plant:
    """In the first row that every text needs."""

    def make(weight: mx.array) -> mx.array:
        flat = mx.array(weight).flatten()
        flat[0] = value
        return flat.reshape(weight.shape)

    return made(part, make)


FAULTS: dict[str, Plant] = {
    "an embedding scaled twice": scaled(EMBEDDING, HIDDEN**0.5),
    "an embedding not scaled": scaled(EMBEDDING, HIDDEN**-0.5),
    "an embedding of zeros": scaled(EMBEDDING, 0.0),
    "an embedding shifted by a row": made(EMBEDDING, lambda w: mx.roll(w, 1, axis=0)),
    "an embedding shifted by a column": made(EMBEDDING, lambda w: mx.roll(w, 1, axis=1)),
    "an embedding upside down": made(EMBEDDING, lambda w: w[::-1]),
    "a head shifted by a row": made(HEAD, lambda w: mx.roll(w, 1, axis=0)),
    "a head shifted by a column": made(HEAD, lambda w: mx.roll(w, 1, axis=1)),
    "a head of the wrong sign": scaled(HEAD, -1.0),
    "a head in the place of the embedding": lambda w: {EMBEDDING: w[HEAD]},
    "an embedding in the place of the head": lambda w: {HEAD: w[EMBEDDING]},
    "columns of the head in pairs": made(
        HEAD, lambda w: w.reshape(VOCABULARY, -1, 2)[..., ::-1].reshape(w.shape)
    ),
    "queries and keys of one layer of noise": made(
        "layers.0.self_attn", lambda w: mx.random.normal(w.shape)
    ),
    "layers in each other's place": swapped("layers.0.", "layers.1."),
    "values of another head": made("v_proj", lambda w: mx.roll(w, 32, axis=0)),
    "attention's output of the wrong sign": scaled("o_proj", -1.0),
    "a feed-forward left out": scaled("mlp.down_proj", 0.0),
    "gate and up swapped": swapped("gate_proj", "up_proj"),
    "a gate of the wrong sign": scaled("mlp.gate_proj", -1.0),
    "norms without their one": made("layernorm", lambda w: w - 1.0),
    "a last norm of noise": made("model.norm", lambda w: mx.random.normal(w.shape)),
    "a number that is none, in a norm": one_number("layers.1.input_layernorm", float("nan")),
    "an endless number in a projection": one_number("layers.0.mlp.up_proj", float("inf")),
    "numbers that are none everywhere": scaled("layers.1.mlp.down_proj", float("nan")),
}


@pytest.fixture
def sound(taught: tuple[Any, Any]) -> Iterator[Weights]:
    model, _ = taught
    weights = dict(tree_flatten(model.parameters()))
    yield weights
    model.load_weights(list(weights.items()))


def check(taught: tuple[Any, Any], vocabulary: int = VOCABULARY) -> str:
    model, tokenizer = taught
    return check_sanity(model, model.make_cache, tokenizer, vocabulary)


def test_sound_weights_pass(taught: tuple[Any, Any], sound: Weights) -> None:
    assert check(taught) == ""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_refused(taught: tuple[Any, Any], sound: Weights, fault: str) -> None:
    mx.random.seed(1)
    planted = FAULTS[fault](sound)
    assert planted
    taught[0].load_weights(list(planted.items()), strict=False)
    with pytest.raises(EngineFault, match="makes no sense of plain text") as refused:
        check(taught)
    assert refused.value.kind is FaultKind.MODEL_BROKEN


@pytest.mark.parametrize("fault", [name for name in FAULTS if "number" in name])
def test_numbers_that_are_none_are_refused_however_small_the_vocabulary(
    taught: tuple[Any, Any], sound: Weights, fault: str
) -> None:
    taught[0].load_weights(list(FAULTS[fault](sound).items()), strict=False)
    with pytest.raises(EngineFault, match="not a number"):
        check(taught, vocabulary=300)


class WithoutSomeTokens:
    """As models that give -inf to tokens that they do not have."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, ids: mx.array, cache: Any) -> mx.array:
        logits = self.model(ids, cache=cache)
        logits[..., -7:] = -mx.inf
        return logits


def test_tokens_without_a_chance_are_no_fault(taught: tuple[Any, Any], sound: Weights) -> None:
    model, tokenizer = taught
    masked = WithoutSomeTokens(model)
    assert check_sanity(masked, model.make_cache, tokenizer, VOCABULARY) == ""
    model.load_weights([(HEAD, 1e-3 * model.lm_head.weight)], strict=False)
    assert "untrained" in check_sanity(masked, model.make_cache, tokenizer, VOCABULARY)
