"""Exact tokens to pages in plain ops: smooth the keys, then encode."""

import mlx.core as mx

from swiftlm_engine.turboquant.codec import Pages, sanitise
from swiftlm_engine.turboquant.formats import PAGE_TOKENS, SINK_TOKENS
from swiftlm_engine.turboquant.sequence import SequenceKV
from swiftlm_engine.turboquant.stats import means_of_tokens


def encode_plain(kv: SequenceKV, count: int) -> Pages:
    """The oldest `count` pages' worth of tokens behind the sinks; their statistics are known."""
    tokens = slice(SINK_TOKENS, SINK_TOKENS + count * PAGE_TOKENS)
    means = means_of_tokens(kv.means, kv.num_pages, count)
    scale = kv.equaliser.astype(mx.float32)[:, None]
    smoothed = (sanitise(kv.exact_keys[:, tokens]) - means) / scale
    return kv.codec.encode(smoothed, kv.exact_values[:, tokens])
