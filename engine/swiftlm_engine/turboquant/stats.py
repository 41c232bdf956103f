"""What is taken off the keys before they are rotated: a mean per segment, a scale per sequence.

Keys of real models carry a large part that no token changes (biases, channel means); it costs bits
and softmax does not see it: q.(k - mu) = q.k - q.mu, and q.mu is added back per segment. The
equaliser s = sqrt(std(k) / rms(q)) balances the channels; k/s is stored and q*s asks. Both are
causal: a segment's mean comes from the tokens that open it, the scale from the first flush, where
a decoding sequence has but a few queries to learn from.
"""

import mlx.core as mx

from swiftlm_engine.turboquant.codec import sanitise
from swiftlm_engine.turboquant.formats import PAGE_TOKENS, SEGMENT_PAGES

EQUALISER_LIMIT = 8.0
_TINY = 1e-6
# So few queries are believed by half: neighbours ask alike, later ones ask differently.
_DOUBT_ROWS = 64


def segment_means(keys: mx.array, first_page: int) -> mx.array:
    """(H, T, d) keys of whole pages from `first_page` on -> (H, S, d) fp16 means of the segments
    that these pages open."""
    return mx.stack(
        [mx.mean(sanitise(keys[:, start:stop]), 1) for start, stop in _opened(keys, first_page)], 1
    ).astype(mx.float16)


def opens_segments(num_pages: int, first_page: int) -> int:
    """How many segments `num_pages` pages after `first_page` open."""
    before, after = -(-first_page // SEGMENT_PAGES), -(-(first_page + num_pages) // SEGMENT_PAGES)
    return after - before


def means_of_tokens(means: mx.array, first_page: int, num_pages: int) -> mx.array:
    """(H, S, d) segment means -> (H, num_pages*64, d) float32, the mean of each token."""
    pages = mx.arange(first_page, first_page + num_pages) // SEGMENT_PAGES
    return mx.repeat(means[:, pages].astype(mx.float32), PAGE_TOKENS, axis=1)


def equaliser(centred_keys: mx.array, queries: mx.array) -> mx.array:
    """(H, T, d) centred keys and (Hq, L, d) queries -> (H, d) fp16, geometric mean 1 per head."""
    heads, _, dim = centred_keys.shape
    spread = mx.sqrt(mx.mean(centred_keys * centred_keys, 1))
    asked = sanitise(queries).reshape(heads, -1, dim)
    asked = mx.sqrt(mx.mean(asked * asked, 1))
    rows = queries.size // (heads * dim)
    trust = rows / (rows + _DOUBT_ROWS)
    log_scale = 0.5 * (_log_relative(spread) - trust * _log_relative(asked))
    log_scale = log_scale - mx.mean(log_scale, -1, keepdims=True)
    scale = mx.clip(mx.exp(log_scale), 1 / EQUALISER_LIMIT, EQUALISER_LIMIT)
    return scale.astype(mx.float16)


def _log_relative(x: mx.array) -> mx.array:
    # Channels that are (nearly) always zero must not pull the geometric mean to infinity.
    largest = mx.max(x, -1, keepdims=True)
    return mx.log(mx.maximum(x, largest * 1e-4) + _TINY)


def _opened(keys: mx.array, first_page: int) -> list[tuple[int, int]]:
    """Token ranges inside `keys` of the segments it opens."""
    total = first_page + keys.shape[1] // PAGE_TOKENS
    ranges = []
    for segment in range(-(-first_page // SEGMENT_PAGES), -(-total // SEGMENT_PAGES)):
        start = segment * SEGMENT_PAGES - first_page
        stop = min(start + SEGMENT_PAGES, total - first_page)
        ranges.append((start * PAGE_TOKENS, stop * PAGE_TOKENS))
    return ranges
