"""What a step needs beside weights and KV, by formula; a measured factor corrects it.

The peak of a prefill chunk is its widest layer: activations of the chunk, the score matrix where
the back end has no fused attention for the head size, and the copy a growing cache makes.
"""

from __future__ import annotations

from dataclasses import dataclass

from swiftlm_engine.brain.facts import KvFormat, LayerKind, ModelFacts
from swiftlm_engine.brain.facts.kv import is_compressed
from swiftlm_engine.brain.plan.machine import Accelerator
from swiftlm_engine.brain.plan.request import AUTO_ROWS, Settings

# Head sizes for which MLX's attention of many queries never builds the score matrix. Metal (0.32.2,
# scaled_dot_product_attention.cpp) has kernels for 192 and 256, too, but takes them only with
# matrix units, 1,024 queries and no mask array: chunks may be shorter, windows have one.
FUSED_HEADS = {
    Accelerator.METAL: frozenset({64, 72, 80, 96, 128}),
    Accelerator.CUDA: frozenset({64, 80, 96, 128}),
    Accelerator.CPU: frozenset[int](),
}

# Fitted to MLX's peak on the CPU back end over six tiny families (docs/memory.md has the table);
# what the graph keeps alive beside one layer's own arrays, and how often scores exist at once.
_ACTIVATIONS_KEPT = 1.5
_WIDE_KEPT = 2.0  # recurrent and latent layers make more arrays of a token's width
_SCORES_KEPT = 1.1
_SCORES_KEPT_MLA = 2.1  # rotary scores serve as the mask of the others
_SCORES_KEPT_SINKS = 3.1  # joined with the sinks, normalised, cut again


@dataclass(frozen=True, slots=True)
class Scratch:
    """Bytes at the peak of a prefill chunk, by cause."""

    activations: int
    scores: int
    cache_growth: int
    window_overhang: int
    logits: int

    @property
    def total(self) -> int:
        return (
            self.activations + self.scores + self.cache_growth + self.window_overhang + self.logits
        )


def prefill_scratch(
    facts: ModelFacts,
    settings: Settings,
    accelerator: Accelerator,
    *,
    prompt: int | None = None,
    dtype: str | None = None,
) -> Scratch:
    """Scratch of evaluating a prompt (default: one that fills the context) in chunks."""
    tokens = settings.context if prompt is None else prompt
    chunk = min(settings.prefill_chunk, tokens)
    size = facts.itemsize(dtype)
    rows = AUTO_ROWS if 1 < settings.parallel < AUTO_ROWS else settings.parallel
    return Scratch(
        activations=int(chunk * _activation_elements(facts) * size),
        scores=_score_bytes(facts, chunk, tokens, accelerator, size),
        cache_growth=_growth_bytes(facts, settings.kv, tokens, accelerator, size),
        window_overhang=_overhang_bytes(facts, chunk, tokens, size),
        # The last row's logits, their float32 log-probabilities and a copy for the sampler.
        logits=rows * facts.shape.vocab_size * (size + 8),
    )


def _activation_elements(facts: ModelFacts) -> float:
    """Live elements per token in the widest part of a layer."""
    shape, weights = facts.shape, facts.weights
    queries = shape.num_attention_heads * shape.head_size
    keys = shape.num_kv_heads * shape.head_size
    attention = 3 * shape.hidden_size + 3 * queries + 3 * keys
    feed_forward = 3 * shape.hidden_size + 3 * shape.intermediate_size
    if weights.experts:
        # Each chosen expert has its own copy of the token, its hidden layer and its output.
        used = weights.experts_per_token
        feed_forward = 3 * shape.hidden_size + used * (
            2 * shape.hidden_size + 3 * shape.expert_size
        )
    wide = any(layer.kind in (LayerKind.LINEAR, LayerKind.MLA) for layer in facts.layers)
    return max(attention, feed_forward) * (_WIDE_KEPT if wide else _ACTIVATIONS_KEPT)


def _score_bytes(
    facts: ModelFacts, chunk: int, tokens: int, accelerator: Accelerator, size: int
) -> int:
    """The widest layer's scores, as often as they exist at once; MLA's expanded keys and values."""
    heads, fused = facts.shape.num_attention_heads, FUSED_HEADS[accelerator]
    widest = 0
    for layer in facts.layers:
        for store in layer.stores:
            seen = min(tokens, (store.limit or tokens) + chunk)
            matrix = heads * chunk * seen * size
            if store.kind is LayerKind.MLA:
                expanded = 2 * heads * facts.shape.head_size * seen * size
                widest = max(widest, int(_SCORES_KEPT_MLA * matrix) + expanded)
            elif store.k_dim not in fused or store.k_dim != store.v_dim:
                kept = _SCORES_KEPT_SINKS if store.sinks else _SCORES_KEPT
                widest = max(widest, int(kept * matrix))
    return widest


def _growth_bytes(
    facts: ModelFacts, kv: KvFormat, tokens: int, accelerator: Accelerator, size: int
) -> int:
    """A cache that grows is copied array by array; a compressed one is expanded for prefill, and
    a GPU is given the next layer while it computes one."""
    layers = 1 if accelerator is Accelerator.CPU else 2
    widest = 0
    for layer in facts.layers:
        for store in layer.stores:
            if store.limit is not None:
                continue
            expanded = layers * (store.k_dim + store.v_dim)
            wide = expanded if is_compressed(store, kv) else store.k_dim
            widest = max(widest, store.heads * wide * tokens * size)
    return widest


def _overhang_bytes(facts: ModelFacts, chunk: int, tokens: int, size: int) -> int:
    """Windows hold a chunk more than their size until the first decode step."""
    return sum(
        store.elements_per_token
        * size
        * max(0, store.prefill_tokens(tokens, chunk) - store.held_tokens(tokens, 1))
        for layer in facts.layers
        for store in layer.stores
        if store.limit is not None
    )
