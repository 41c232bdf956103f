"""KV formats and what a token costs in each; see docs/turboquant.md for the records.

Only full-attention stores whose head size the codec knows are compressed. All others, and the
exact zone of a compressed store (sinks and newest tokens), stay in the model's dtype. A test holds
these numbers against the codec's own arithmetic and against real caches.
"""

from __future__ import annotations

from enum import StrEnum

from swiftlm_engine.brain.facts.layers import KvStore

PAGE_TOKENS = 64
SEGMENT_TOKENS = 512
SEGMENT_PAGES = SEGMENT_TOKENS // PAGE_TOKENS
# Sinks, newest tokens, one page not yet flushed and room for speculated ones.
EXACT_TOKENS = 4 + 64 + 64 + 12
_FIRST_PAGE_TOKENS = 4 + 64  # never compressed


class KvFormat(StrEnum):
    """How full-attention layers keep keys and values; FP16 means the model's own dtype."""

    FP16 = "fp16"
    K4V3 = "k4v3"
    SPEC = "spec"
    SPEC_SRHT = "spec-srht"
    K8V3 = "k8v3"
    K4V4 = "k4v4"

    @property
    def turbo(self) -> bool:
        return self is not KvFormat.FP16


def record_bytes(kv: KvFormat, head_size: int) -> int:
    """Bytes of one compressed token of one KV head: codes and fp16 scales of key and value."""
    key = {
        KvFormat.K4V3: head_size // 2 + 2,
        KvFormat.K4V4: head_size // 2 + 2,
        # 3-bit index and residual sign; norm and residual norm
        KvFormat.SPEC: head_size // 2 + 4,
        KvFormat.SPEC_SRHT: head_size // 2 + 4,
        KvFormat.K8V3: head_size + 2,
    }[kv]
    value = head_size // 2 + 2 if kv is KvFormat.K4V4 else 3 * head_size // 8 + 2
    return key + value


def mean_bytes(head_size: int) -> int:
    """The key mean of one segment (and the equaliser of one sequence) of one KV head, fp16."""
    return 2 * head_size


def supports_head_size(size: int) -> bool:
    return 16 <= size <= 512 and size % 8 == 0


def is_compressed(store: KvStore, kv: KvFormat) -> bool:
    return kv.turbo and not store.turbo_blocker


def bytes_per_token(store: KvStore, kv: KvFormat, itemsize: int) -> float:
    """The slope: what one more token costs in the long run (0 for a full window)."""
    if store.limit is not None:
        return 0.0
    if is_compressed(store, kv):
        per_head = record_bytes(kv, store.k_dim) + mean_bytes(store.k_dim) / SEGMENT_TOKENS
        return store.heads * per_head
    return float(store.elements_per_token * itemsize)


def store_bytes(
    store: KvStore, kv: KvFormat, itemsize: int, prompt: int, generated: int = 0
) -> int:
    """Bytes one sequence's cache holds after `prompt` and `generated` tokens.

    Exact for mlx-lm's caches; for a compressed store the most that its growth strides can hold.
    """
    exact = store.elements_per_token * itemsize
    if not is_compressed(store, kv):
        return exact * store.held_tokens(prompt, generated)
    pages = max(0, prompt + generated - _FIRST_PAGE_TOKENS) // PAGE_TOKENS
    slack = max(min(SEGMENT_PAGES, pages), pages // 32)  # room its pool grows by
    codes = (pages + slack) * PAGE_TOKENS * record_bytes(kv, store.k_dim)
    means = (-(-pages // SEGMENT_PAGES) + 1) * mean_bytes(store.k_dim)
    return exact * EXACT_TOKENS + store.heads * (codes + means)
