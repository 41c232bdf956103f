"""Whether the loaded weights know any language: what they make of a line of plain text.

Weights can be read without an error and still be wrong: an embedding scaled twice or not at all
(Gemma's sqrt(hidden_size)), tensors under each other's names. Such a model answers whitespace at
full speed. Here it has to predict short texts, of which every trained model knows some: over the
best of them the models at hand lose 0.9 to 1.4 nats per token (docs/models.md), Gemma with a
wrong scale 12. A model whose predictions are as good as dice was never trained: whoever made it
knows that, and is only told so. What is no number, and the same for every token, is never right.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from swiftlm_engine.load.options import EngineOptions
from swiftlm_engine.load.weights import LoadedWeights
from swiftlm_engine.messages import EngineFault, FaultKind
from swiftlm_engine.run.row_caches import Caches
from swiftlm_engine.streaming.report import StreamMode

TEXTS = (
    "def add(a, b):\n    return a + b\n",
    "The capital of France is Paris, and the capital of Germany is Berlin.",
    "Die Hauptstadt von Deutschland ist Berlin, und die Hauptstadt von Frankreich ist Paris.",
    "中国的首都是北京，法国的首都是巴黎。",  # noqa: RUF001
)
MAX_LOSS = 8.0  # nats per token; a vocabulary of e^8 = 2,981 tokens or fewer cannot lose more
_DICE = 1.0  # nats below those of a throw of dice that make a prediction

NewCaches = Callable[[], Caches]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WeightsReading:
    """What a model made of one text, in nats per token."""

    loss: float
    entropy: float  # of its predictions: how sure it was
    favourite: int  # the token that it predicted most often
    is_blank: bool  # every token got the same, at each position


def checked(
    weights: LoadedWeights, new_caches: NewCaches, vocab_size: int, options: EngineOptions
) -> LoadedWeights:
    """The weights, with a note if they are odd. Raises EngineFault unless the load is forced.

    While experts are read from disk nothing is asked: a text would read most of them.
    """
    if weights.streaming is not None and weights.streaming.mode is StreamMode.EXPERTS:
        return weights
    try:
        note = check_sanity(weights.model, new_caches, weights.tokenizer, vocab_size)
    except EngineFault as fault:
        if not options.force:
            advice = f"load it as it is with `swiftlmctl load {options.model} --force`"
            raise EngineFault(fault.kind, f"{fault.message}, or {advice}") from fault
        log.warning("forced load: %s", fault.message)
        note = fault.message
    return replace(weights, notes=(*weights.notes, note)) if note else weights


def check_sanity(model: Any, new_caches: NewCaches, tokenizer: Any, vocab_size: int) -> str:
    """Empty, or a note on weights that were never trained. Raises EngineFault for broken ones.

    One short prefill where the model is sound, four where it is not. Evaluated.
    """
    dice = math.log(vocab_size)
    readings: list[WeightsReading] = []
    for text in TEXTS:
        token_ids = tokenizer.encode(text)
        if len(token_ids) < 2:
            continue
        readings.append(_read(model, new_caches(), token_ids))
        _refuse_dead(readings[-1])
        if readings[-1].loss <= MAX_LOSS or dice <= MAX_LOSS:
            return ""
    if not readings:
        return ""
    best = min(readings, key=lambda reading: reading.loss)
    if best.entropy > dice - _DICE and best.loss < dice + _DICE:
        return "the weights look untrained: every token is as likely as any other"
    answer = tokenizer.decode([best.favourite])
    raise EngineFault(
        FaultKind.MODEL_BROKEN,
        f"the loaded model makes no sense of plain text: it loses {best.loss:.1f} nats per token "
        f"(a trained model 1 to 5, dice {dice:.1f}) and mostly predicts {answer!r}. Weights, their "
        "conversion or a scale in config.json are wrong: pull or convert it again",
    )


def _refuse_dead(reading: WeightsReading) -> None:
    if math.isfinite(reading.loss) and not reading.is_blank:
        return
    what = "the same for every token" if reading.is_blank else "not a number"
    raise EngineFault(
        FaultKind.MODEL_BROKEN,
        f"the loaded model makes no sense of plain text: what it predicts is {what}. Weights are "
        "damaged, or a scale in config.json is wrong: pull or convert the model again",
    )


def _read(model: Any, caches: Caches, token_ids: Sequence[int]) -> WeightsReading:
    ids = mx.array(list(token_ids))
    logits = model(ids[None], cache=caches)[0, :-1].astype(mx.float32)  # (L - 1, V)
    odds = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    loss = -mx.mean(mx.take_along_axis(odds, ids[1:, None], axis=-1))
    # Some models give -inf to tokens that they do not have: no chance, and nothing to its entropy.
    parts = mx.where(odds > -math.inf, mx.exp(odds) * odds, 0.0)
    entropy = -mx.mean(mx.sum(parts, axis=-1))
    predicted = mx.argmax(logits, axis=-1)
    spread = mx.max(mx.max(logits, axis=-1) - mx.min(logits, axis=-1))
    mx.eval(loss, entropy, predicted, spread)
    (favourite, _), *_ = Counter(predicted.tolist()).most_common(1)
    return WeightsReading(loss.item(), entropy.item(), favourite, spread.item() == 0)
