"""Segments: a conversation tokenised piece by piece, each piece once.

A tokenizer cuts a text at its special tokens before it does anything else, and looks at each part
alone. So do we, before special tokens that stand for themselves wherever they occur; what lies
between two of them keeps its ids, in the next turn of a conversation and in other conversations.
"""

from __future__ import annotations

import logging
import re
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from threading import Lock
from typing import Any, overload

from swiftlm_engine.text.boundaries import Encoded

log = logging.getLogger(__name__)

MAX_CHARS = 8 << 20  # of the segments that are remembered; about 50 MB with their ids
_MAX_CUTS = 64  # special tokens at which a text is cut
_ITEM = "I"
_PIECES = ("", " ", "a", "\n", " b", "é中", "  c ", "😀\u200d", "\n\n ", "the end.")


@dataclass(frozen=True, slots=True)
class EncodedPart:
    ids: array[int]
    ends: array[int]  # where each token ends, from the segment's beginning


class Segments:
    """One tokenizer's. Any thread may use it."""

    def __init__(self, cuts: Collection[str]) -> None:
        longest_first = sorted(cuts, key=len, reverse=True)
        self._cut = re.compile("|".join(map(re.escape, longest_first))) if cuts else None
        self._lock = Lock()  # guards the two below
        self._known: OrderedDict[str, EncodedPart] = OrderedDict()
        self._num_chars = 0

    @property
    def used(self) -> bool:
        """Whether a text is cut at all."""
        return self._cut is not None

    def split(self, text: str) -> list[str]:
        if self._cut is None:
            return [text]
        starts = [0, *(found.start() for found in self._cut.finditer(text)), len(text)]
        return [text[a:b] for a, b in pairwise(starts) if a < b]

    def missing(self, parts: Sequence[str]) -> list[str]:
        with self._lock:
            return [part for part in dict.fromkeys(parts) if part not in self._known]

    def encoded(self, text: str, parts: Sequence[str], encode: Callable[[str], Encoded]) -> Encoded:
        """The whole of `text`; what is not known is asked of `encode`."""
        segments = [self._segment(part, encode) for part in parts]
        ids = tuple(chain.from_iterable(segment.ids for segment in segments))
        return Encoded(text, ids, JoinedEnds(parts, segments))

    def learn(self, encoded: Encoded, parts: Sequence[str]) -> None:
        """From a text that was encoded in one piece."""
        at = first = 0
        for part in parts:
            last = encoded.tokens_before(at + len(part))
            ends = [end - at for end in encoded.ends[first:last]]
            ids = encoded.token_ids[first:last]
            self._keep(part, EncodedPart(array(_ITEM, ids), array(_ITEM, ends)))
            at, first = at + len(part), last

    def _segment(self, part: str, encode: Callable[[str], Encoded]) -> EncodedPart:
        with self._lock:
            known = self._known.get(part)
            if known is not None:
                self._known.move_to_end(part)
                return known
        made = encode(part)
        segment = EncodedPart(array(_ITEM, made.token_ids), array(_ITEM, made.ends))
        self._keep(part, segment)
        return segment

    def _keep(self, part: str, segment: EncodedPart) -> None:
        with self._lock:
            if part in self._known or len(part) > MAX_CHARS // 4:
                return
            self._known[part] = segment
            self._num_chars += len(part)
            while self._num_chars > MAX_CHARS:
                forgotten, _ = self._known.popitem(last=False)
                self._num_chars -= len(forgotten)


class JoinedEnds(Sequence[int]):
    """Where each token of all segments ends in the whole text; computed when asked."""

    def __init__(self, parts: Sequence[str], segments: Sequence[EncodedPart]) -> None:
        self._segments = segments
        self._begins = [0, *accumulate(map(len, parts))]  # characters
        self._firsts = [0, *accumulate(len(one.ids) for one in segments)]  # tokens

    def __len__(self) -> int:
        return self._firsts[-1]

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(index)
        which = bisect_right(self._firsts, at) - 1
        return self._begins[which] + self._segments[which].ends[at - self._firsts[which]]


def segments_of(tokenizer: Any, encode: Callable[[str], Encoded]) -> Segments:
    """Of a tokenizer of transformers. It cuts nothing where one does not keep to what is said
    above."""
    cuts = cuts_of(tokenizer)[:_MAX_CUTS]
    found = Segments(cuts)
    try:
        same = all(_is_the_same(found, text, encode) for text in _probes(cuts))
        return found if same else Segments(())
    except Exception:  # of native code: there are tokenizers that not every letter has a token in
        log.info("prompts are tokenised in one piece", exc_info=True)
        return Segments(())


def _is_the_same(segments: Segments, text: str, encode: Callable[[str], Encoded]) -> bool:
    whole, cut = encode(text), Segments(()).encoded(text, segments.split(text), encode)
    return whole.token_ids == cut.token_ids and list(whole.ends) == list(cut.ends)


def _probes(cuts: Sequence[str]) -> Iterator[str]:
    for i, piece in enumerate(_PIECES if cuts else ()):
        yield piece.join(["x", *cuts[:8], *reversed(cuts[:8]), "y"])
        yield f"{piece}{cuts[i % len(cuts)]}{piece}{cuts[0]}{cuts[0]}{piece}"


def cuts_of(tokenizer: Any) -> list[str]:
    """Special tokens that are found wherever they stand in a text, those of the template first."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    texts = [str(token.content) for token in added if str(token.content)]
    suffixes = {text[i:] for text in texts for i in range(1, len(text))}
    together, single = "\0".join(texts), set(texts)
    template = str(getattr(tokenizer, "chat_template", "") or "")
    found = [
        text
        for text, token in zip(texts, added, strict=True)
        if token.special
        and not (token.normalized or token.lstrip or token.rstrip or token.single_word)
        and together.count(text) == 1
        and not _meets(text, single, suffixes)
    ]
    return sorted(found, key=lambda text: text not in template)


def _meets(text: str, others: Collection[str], suffixes: Collection[str]) -> bool:
    """Whether another token lies in it, or may end in its beginning and so be taken first."""
    lengths = range(1, len(text))
    return any(text[:n] in suffixes for n in lengths) or any(
        text[i : i + n] in others for n in lengths for i in range(len(text) - n + 1)
    )
