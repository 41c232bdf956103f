"""The compressed KV of one sequence in one layer: exact zones, page pool, segment statistics.

Order of tokens: the first `SINK_TOKENS` exact ones, then the pages, then the other exact ones.
Arrays are only ever replaced or written through handles this object owns, so a fork costs nothing
until one side writes (MLX then copies the buffer). Nothing beyond the counts is ever read. A
decoded token is first only held (`fresh`): a kernel writes it as it attends, anybody else's look at
the exact zone does. Results are lazy.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from swiftlm_engine.turboquant.codec import Codec, Pages, sanitise
from swiftlm_engine.turboquant.formats import (
    PAGE_TOKENS,
    RECENT_TOKENS,
    SEGMENT_PAGES,
    SINK_TOKENS,
    num_pages,
)
from swiftlm_engine.turboquant.stats import (
    equaliser,
    means_of_tokens,
    opens_segments,
    segment_means,
)

# What decoding can hold before it flushes, with room for a few speculated tokens.
EXACT_CAPACITY = SINK_TOKENS + RECENT_TOKENS + PAGE_TOKENS + 12

MAX_FRESH = 4  # tokens a decode step brings: one, or a few speculated ones

# (storage, pages) -> the oldest tokens behind the sinks as pages; a backend's `encode`.
Encode = Callable[["SequenceKV", int], Pages]


@dataclass(slots=True)
class SequenceKV:
    """Mutable storage; `TurboKVCache` is its face towards mlx-lm."""

    codec: Codec
    num_exact: int = 0  # `fresh` ones included
    num_pages: int = 0
    # Arrays are None while there is nothing to hold: no tokens, no pages.
    zone: mx.array = None  # (2, H, capacity, d): keys, values in the model's dtype
    fresh: tuple[mx.array, mx.array] | None = None  # (..., H, T, d) newest tokens, not yet in zone
    pages: Pages | None = None  # capacity may exceed num_pages
    means: mx.array = None  # (H, S, d) fp16
    equaliser: mx.array = None  # (H, d) fp16

    @property
    def exact_keys(self) -> mx.array:
        """(H, capacity, d), None while there are no tokens."""
        zone = self.settled()
        return None if zone is None else zone[0]

    @property
    def exact_values(self) -> mx.array:
        zone = self.settled()
        return None if zone is None else zone[1]

    @property
    def capacity(self) -> int:
        """Exact tokens there is room for."""
        return 0 if self.zone is None else self.zone.shape[2]

    @property
    def num_fresh(self) -> int:
        return 0 if self.fresh is None else self.fresh[0].shape[-2]

    @property
    def num_tokens(self) -> int:
        return self.num_exact + self.num_pages * PAGE_TOKENS

    @property
    def num_segments(self) -> int:
        return -(-self.num_pages // SEGMENT_PAGES)

    @property
    def held_pages(self) -> Pages:
        """The pages of a sequence that has some."""
        assert self.pages is not None
        return self.pages

    def arrays(self) -> list[mx.array | None]:
        pages = (None,) * 4 if self.pages is None else self.pages.arrays()
        return [self.exact_keys, self.exact_values, *pages, self.means, self.equaliser]

    def nbytes(self) -> int:
        pages = () if self.pages is None else self.pages.arrays()
        held = (self.zone, *pages, self.means, self.equaliser)
        return sum(a.nbytes for a in held if a is not None)

    def fork(self) -> "SequenceKV":
        """A copy that shares every buffer until one side writes."""
        twin = SequenceKV(self.codec, self.num_exact, self.num_pages)
        held = self.settled(), self.means, self.equaliser
        twin.zone, twin.means, twin.equaliser = map(_shared, held)
        if self.pages is not None:
            twin.pages = Pages(*map(_shared, self.pages.arrays()))
        return twin

    def adopt(self, arrays: list[mx.array | None]) -> None:
        """Take over the arrays of `arrays()`, in that order."""
        keys, values, *pages, self.means, self.equaliser = arrays
        self.zone, self.fresh = None if keys is None else mx.stack([keys, values]), None
        self.pages = None if pages[0] is None else Pages(*pages)

    def append(self, keys: mx.array, values: mx.array) -> None:
        """Add (..., H, T, d) tokens, leading ones only; `flush` compresses later."""
        self.settled()
        count = keys.shape[-2]
        self.num_exact += count
        self.fresh = keys, values
        if count > MAX_FRESH or not self.num_pages or self.num_exact > self.capacity:
            self.settled()

    def adopt_zone(self, zone: mx.array) -> None:
        """Take over an exact zone in which the fresh tokens are written."""
        self.zone, self.fresh = zone, None

    def settled(self) -> mx.array:
        """The exact zone with the fresh tokens written into it; None while there are none."""
        if self.fresh is None:
            return self.zone
        fresh = mx.stack([x.reshape(x.shape[-3:]) for x in self.fresh])
        start = self.num_exact - self.num_fresh
        self.fresh = None
        if self.zone is None or self.num_exact > self.capacity:
            self.zone = _grown(self.zone, start, fresh)
        else:
            self.zone[:, :, start : self.num_exact] = fresh
        return self.zone

    def flush(self, queries: mx.array, encode: Encode) -> None:
        """Compress all but the newest tokens; `queries` (..., Hq, T, d) teach the first
        equaliser."""
        count = num_pages(self.num_tokens) - self.num_pages
        if count <= 0:
            return
        stop = SINK_TOKENS + count * PAGE_TOKENS
        self._learn(self.exact_keys[:, SINK_TOKENS:stop], queries, count)
        self._store(encode(self, count), count)
        self.zone = _without(self.zone, stop, self.num_exact)
        self.num_exact -= count * PAGE_TOKENS

    def trim(self, count: int) -> int:
        """Forget the newest `count` tokens; returns how many that were."""
        self.settled()
        count = min(count, self.num_tokens)
        newest = self.num_exact - SINK_TOKENS if self.num_pages else self.num_exact
        if count <= newest:
            self.num_exact -= count
        elif count >= newest + self.num_pages * PAGE_TOKENS:
            self.num_exact = self.num_tokens - count
            self._keep_pages(0)
        else:
            self._reopen(self.num_pages * PAGE_TOKENS - (count - newest))
        return count

    def expand(self, start: int = 0, stop: int | None = None) -> tuple[mx.array, mx.array]:
        """Pages start..stop as ordinary (H, tokens, d) float32 keys and values."""
        stop = self.num_pages if stop is None else stop
        pages = self.page_range(start, stop)
        scale = self.equaliser.astype(mx.float32)[:, None]
        keys = self.codec.rotation.inverse(self.codec.decode_keys(pages)) * scale
        keys = keys + means_of_tokens(self.means, start, stop - start)
        return keys, self.codec.rotation.inverse(self.codec.decode_values(pages))

    def page_range(self, start: int, stop: int) -> Pages:
        return Pages(*(a[:, start:stop] for a in self.held_pages.arrays()))

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """Everything, expanded, as (H, N, d) in the model's dtype."""
        keys = self.exact_keys[:, : self.num_exact]
        values = self.exact_values[:, : self.num_exact]
        if self.num_pages == 0:
            return keys, values
        old_keys, old_values = self.expand()
        return _between(keys, old_keys), _between(values, old_values)

    def _learn(self, keys: mx.array, queries: mx.array, count: int) -> None:
        if opens_segments(count, self.num_pages):
            opened = segment_means(keys, self.num_pages)
            known = [] if self.means is None else [self.means]
            self.means = mx.concatenate([*known, opened], axis=1)
        if self.equaliser is None:
            centred = sanitise(keys) - means_of_tokens(self.means, self.num_pages, count)
            self.equaliser = equaliser(centred, queries)

    def _store(self, fresh: Pages, count: int) -> None:
        start, stop = self.num_pages, self.num_pages + count
        room = 0 if self.pages is None else self.pages.key_words.shape[1]
        # After a deep cut the pool is left behind: writing into a shared one would copy it whole.
        if stop > room or room > 2 * stop + SEGMENT_PAGES:
            # At most a segment or 3 % of slack, and still few copies.
            capacity = stop + max(min(SEGMENT_PAGES, start), start // 32)
            held = (None,) * 4 if self.pages is None else self.pages.arrays()
            self.pages = Pages(
                *(
                    _page_grown(old, start, new, capacity)
                    for old, new in zip(held, fresh.arrays(), strict=True)
                )
            )
        else:
            for held, new in zip(self.held_pages.arrays(), fresh.arrays(), strict=True):
                held[:, start:stop] = new
        self.num_pages = stop

    def _reopen(self, kept: int) -> None:
        """Keep `kept` page tokens; those of the broken page go back to the exact zone."""
        whole, loose = divmod(kept, PAGE_TOKENS)
        keys, values = self.exact_keys[:, :SINK_TOKENS], self.exact_values[:, :SINK_TOKENS]
        if loose:
            old_keys, old_values = self.expand(whole, whole + 1)
            keys = mx.concatenate([keys, old_keys[:, :loose].astype(keys.dtype)], 1)
            values = mx.concatenate([values, old_values[:, :loose].astype(values.dtype)], 1)
        self.num_exact = SINK_TOKENS + loose
        self.zone = _grown(None, 0, mx.stack([keys, values]))
        self._keep_pages(whole)

    def _keep_pages(self, count: int) -> None:
        self.num_pages = count
        if count == 0:
            self.pages = self.means = self.equaliser = None
        else:
            self.means = self.means[:, : self.num_segments]
            self._leave_large_pool()

    def _leave_large_pool(self) -> None:
        """A short rest of a long sequence gets a pool of its own: it would keep all of the long
        one's, and be billed for it."""
        if self.held_pages.key_words.shape[1] > 2 * self.num_pages + SEGMENT_PAGES:
            kept = self.page_range(0, self.num_pages)
            self.pages = Pages(*map(mx.contiguous, kept.arrays()))
            self.means = mx.contiguous(self.means)


def _shared(array: mx.array | None) -> mx.array:
    """Another object on the same buffer; mx.array(array) would copy it."""
    return None if array is None else array[...]


def _grown(held: mx.array | None, used: int, new: mx.array) -> mx.array:
    parts = [new] if held is None or used == 0 else [held[:, :, :used], new]
    both, heads, tokens, dim = new.shape
    spare = EXACT_CAPACITY - used - tokens
    if spare > 0:
        parts.append(mx.zeros((both, heads, spare, dim), new.dtype))
    return mx.concatenate(parts, axis=2) if len(parts) > 1 else new


def _without(zone: mx.array, stop: int, used: int) -> mx.array:
    """The exact zone without the tokens between the sinks and `stop`."""
    return _grown(zone[:, :, :SINK_TOKENS], SINK_TOKENS, zone[:, :, stop:used])


def _page_grown(held: mx.array | None, used: int, new: mx.array, capacity: int) -> mx.array:
    parts = [new] if held is None else [held[:, :used], new]
    spare = capacity - used - new.shape[1]
    if spare:
        parts.append(mx.zeros((new.shape[0], spare, *new.shape[2:]), new.dtype))
    return mx.concatenate(parts, axis=1) if len(parts) > 1 else new


def _between(exact: mx.array, pages: mx.array) -> mx.array:
    parts = [exact[:, :SINK_TOKENS], pages.astype(exact.dtype), exact[:, SINK_TOKENS:]]
    return mx.concatenate(parts, axis=1)
