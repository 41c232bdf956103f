"""A load of weights that make no sense of plain text is refused, and says what is wrong."""

from __future__ import annotations

import math
from pathlib import Path

import mlx.core as mx
import pytest
from engine_harness import EngineHarness
from mlx_lm.utils import load
from taught_head import taught_head
from tiny_models import make_model

from swiftlm_engine.messages import EngineFault, FaultKind, GenerateJob
from swiftlm_engine.session.weights_check import TEXTS, check_sanity

VOCABULARY, HIDDEN = 4096, 256  # more tokens than the bound lets pass as dice
GEMMA = Path(__file__).resolve().parents[2] / ".cache" / "models" / "gemma3-270m-dense"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def taught(tmp_path):
    """A model whose head was fitted to tell from its last states what comes next in one text.

    It has an opinion on any other state, too. Layers add as much to a residual of any size, so
    that another scale of the embedding makes other states.
    """
    folder = make_model("gemma3_text", tmp_path, vocab_size=VOCABULARY, hidden_size=HIDDEN)
    model, tokenizer = load(str(folder))
    head = taught_head(model, tokenizer, TEXTS[0], VOCABULARY)
    change(folder, HEAD, lambda _: head)
    return folder


def change(folder, name, make):
    weights = mx.load(str(folder / "model.safetensors"))
    weights[name] = make(weights[name])
    mx.eval(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})


def test_model_that_knows_one_of_the_texts_loads_without_a_word(taught):
    with EngineHarness(taught) as engine:
        assert engine.session.facts.notes == ()


@pytest.mark.parametrize("factor", [HIDDEN**-0.5, HIDDEN**0.5], ids=["left out", "twice"])
def test_embedding_with_a_wrong_scale_is_refused_unless_forced(taught, factor):
    change(taught, EMBEDDING, lambda embedding: embedding * factor)
    with pytest.raises(EngineFault, match=r"nats per .* scale .* load tiny --force") as found:
        EngineHarness(taught)
    assert found.value.kind is FaultKind.MODEL_BROKEN
    with EngineHarness(taught, force=True) as engine:
        assert "makes no sense" in engine.session.facts.notes[0]
        (answer,) = engine.run(GenerateJob("a", "hello", max_tokens=2, ignore_eos=True))
        assert answer.finished.fault is None


def test_untrained_weights_load_with_a_note(taught):
    change(taught, HEAD, lambda head: 0.01 * mx.random.normal(head.shape))
    with EngineHarness(taught) as engine:
        assert "untrained" in engine.session.facts.notes[0]


def test_vocabulary_that_dice_master_is_not_judged(tmp_path):
    with EngineHarness(make_model("gemma3_text", tmp_path)) as engine:
        assert engine.session.facts.notes == ()


@pytest.mark.slow
@pytest.mark.skipif(not GEMMA.exists(), reason="python -m bench memory makes it")
@pytest.mark.parametrize("power", [-0.5, 0.0, 0.5])
def test_real_gemma_is_sound_with_its_own_scale_alone(power):
    model, tokenizer = load(str(GEMMA))
    factor = model.args.hidden_size**power
    embedding = model.model.embed_tokens
    model.model.embed_tokens = lambda ids: embedding(ids) * factor
    model.model.embed_tokens.as_linear = embedding.as_linear
    size = embedding.weight.shape[0]

    def check():
        return check_sanity(model, model.make_cache, tokenizer, size)

    if power == 0:
        assert check() == ""
    else:
        with pytest.raises(EngineFault, match="makes no sense"):
            check()


@pytest.mark.parametrize(("factor", "told"), [(math.nan, "no number"), (0.0, "the same")])
def test_a_device_that_loses_its_numbers_later_shows_it_in_log_probabilities(
    tmp_path, factor, told
):
    """The daemon's self-test after waking reads them (residency/self_test.py)."""
    with EngineHarness(make_model("llama", tmp_path)) as engine:
        head = engine.session.runner._model.lm_head

        def lose():
            head.weight = head.weight * factor
            mx.eval(head.weight)

        engine.mlx.call(lose).result(60)
        question = GenerateJob("a", "1", max_tokens=1, no_cache=True, raw_text=True, top_logprobs=8)
        (answer,) = engine.run(question)
        (token,) = answer.deltas[0].logprobs
        top = {other.logprob for other in token.top}
        assert math.isnan(token.logprob) if told == "no number" else len(top) == 1
