"""Which speculation a load asked for, and whether this pair of models can do it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model, load_tokenizer

from swiftlm_engine.load.weights import DTYPES
from swiftlm_engine.messages import EngineFault, FaultKind
from swiftlm_engine.speculation.draft_model import DraftModelDrafter
from swiftlm_engine.speculation.ngram import NgramDrafter
from swiftlm_engine.speculation.speculator import Drafter, Speculator

NGRAM = "ngram"
DEFAULT_NGRAM_TOKENS = 8
DEFAULT_DRAFT_TOKENS = 4


def choose_speculator(
    asked: str, draft_tokens: int, tokenizer: Any, dtype: str
) -> Speculator | None:
    """`asked` is "", "off", "ngram" or the folder of a draft model.

    Raises `EngineFault(UNSUPPORTED)` with the reason when the pair cannot work; decided here, at
    load, and not at the first request.
    """
    if asked in ("", "off"):
        return None
    if asked == NGRAM:
        return Speculator(NgramDrafter, draft_tokens or DEFAULT_NGRAM_TOKENS, one_sequence=False)
    make = _load_draft(Path(asked), tokenizer, dtype)
    return Speculator(make, draft_tokens or DEFAULT_DRAFT_TOKENS)


def _load_draft(folder: Path, tokenizer: Any, dtype: str) -> Callable[[], Drafter]:
    try:
        model, _ = load_model(folder)
        other = load_tokenizer(folder)
    except (ValueError, OSError, RuntimeError, KeyError) as error:
        raise EngineFault(
            FaultKind.MODEL_BROKEN, f"draft model {folder} cannot be loaded: {error}", param="draft"
        ) from error
    if other.get_vocab() != tokenizer.get_vocab():
        raise _refused(f"draft model {folder} has another vocabulary")
    if dtype in DTYPES:
        model.set_dtype(DTYPES[dtype])
    return lambda: DraftModelDrafter(model, lambda: list(make_prompt_cache(model)))


def _refused(reason: str) -> EngineFault:
    message = f"{reason}; load it without --draft"
    return EngineFault(FaultKind.UNSUPPORTED, message, param="draft")
