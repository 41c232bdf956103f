"""The KV caches of one loaded model: their format, how they are made, what they cost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlx_lm.models.cache import make_prompt_cache

from swiftlm_engine import turboquant
from swiftlm_engine.brain.facts import KvFormat, ModelFacts
from swiftlm_engine.decode_batch import Caches
from swiftlm_engine.generation import EngineFault, FaultKind
from swiftlm_engine.prefix.snapshot import LeafKind, kind_of, leaves_of
from swiftlm_engine.turboquant.formats import FORMATS

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KvCaches:
    """`notes` says in plain words what differs from what was asked, and why."""

    kv: KvFormat
    make: Callable[[], Caches]
    facts: ModelFacts
    dtype: str
    notes: tuple[str, ...] = ()

    def price(self, prompt_tokens: int, max_tokens: int) -> int:
        """Bytes of one sequence's caches when it has grown to its end."""
        return self.facts.kv_bytes(prompt_tokens, max_tokens, self.kv, self.dtype)

    @property
    def needs_checkpoints(self) -> bool:
        """Some layer cannot go back to an earlier position (recurrent, or a window)."""
        return any(kind_of(leaf) is not LeafKind.TRUNK for leaf in leaves_of(self.make()))


def choose_caches(model: Any, asked: str, facts: ModelFacts, dtype: str) -> KvCaches:
    """Raises `EngineFault` for a format that does not exist. Never falls back silently."""
    if asked in ("", "auto", KvFormat.FP16):
        return KvCaches(KvFormat.FP16, lambda: list(make_prompt_cache(model)), facts, dtype)
    if asked not in FORMATS:
        known = ", ".join(["auto", "fp16", *FORMATS])
        message = f"kv '{asked}' is not one of {known}"
        raise EngineFault(FaultKind.INVALID, message, param="kv")
    turboquant.install(model)
    made = turboquant.make_caches(model, asked)
    if not made.verdict.num_compressed_layers:
        reasons = "; ".join(made.verdict.lines())
        raise EngineFault(
            FaultKind.UNSUPPORTED,
            f"kv {asked} compresses no layer of this model ({reasons}); load it with --kv fp16",
            param="kv",
        )
    for line in made.verdict.lines():
        log.info("kv %s: %s", asked, line)
    return KvCaches(
        KvFormat(asked),
        lambda: turboquant.make_caches(model, asked, made.verdict).caches,
        facts,
        dtype,
        tuple(made.verdict.lines()),
    )
