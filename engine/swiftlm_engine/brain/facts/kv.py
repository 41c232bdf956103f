"""KV formats and what a token costs in each; see docs/turboquant.md for the records.

Only full-attention stores whose head size the codec knows are compressed. All others, and the
exact zones of a compressed store (sinks and ring), stay in the model's dtype.
"""

from __future__ import annotations

from enum import StrEnum

from .layers import KvStore, round_up

TURBO_HEAD_SIZES = frozenset({64, 80, 96, 128, 256, 512})
SINK_TOKENS = 4
RING_TOKENS = 128
SEGMENT_TOKENS = 512
PAGE_TOKENS = 64


class KvFormat(StrEnum):
    """How full-attention layers keep keys and values; FP16 means the model's own dtype."""

    FP16 = "fp16"
    K4V3 = "k4v3"
    SPEC = "spec"
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
        # 3-bit index and residual sign, norm and residual norm.
        KvFormat.SPEC: head_size // 2 + 4,
        # affine: one fp16 scale and bias per group of 64 (or the head, if smaller)
        KvFormat.K8V3: head_size + 4 * -(-head_size // 64),
    }[kv]
    value = head_size // 2 + 2 if kv is KvFormat.K4V4 else 3 * head_size // 8 + 2
    return key + value


def segment_bytes(head_size: int) -> int:
    """Mean and equaliser of the keys, fp16, once per segment of one KV head."""
    return 2 * 2 * head_size


def is_compressed(store: KvStore, kv: KvFormat) -> bool:
    return kv.turbo and not store.turbo_blocker


def bytes_per_token(store: KvStore, kv: KvFormat, itemsize: int) -> float:
    """The slope: what one more token costs in the long run (0 for a full window)."""
    if store.limit is not None:
        return 0.0
    if is_compressed(store, kv):
        per_head = record_bytes(kv, store.k_dim) + segment_bytes(store.k_dim) / SEGMENT_TOKENS
        return store.heads * per_head
    return float(store.elements_per_token * itemsize)


def store_bytes(
    store: KvStore, kv: KvFormat, itemsize: int, prompt: int, generated: int = 0
) -> int:
    """Bytes one sequence's cache holds after `prompt` and `generated` tokens."""
    exact = store.elements_per_token * itemsize
    if not is_compressed(store, kv):
        return exact * store.held_tokens(prompt, generated)
    tokens = prompt + generated
    zones = exact * (SINK_TOKENS + RING_TOKENS)
    pages = round_up(tokens, PAGE_TOKENS) * record_bytes(kv, store.k_dim)
    segments = -(-tokens // SEGMENT_TOKENS) * segment_bytes(store.k_dim)
    return zones + store.heads * (pages + segments)
