"""Runs what the scheduler planned: opens sequences, prefills chunks, steps the decode batch.

The only place besides `decode_batch.py` that calls the model. It decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Sequence_
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache, KVCache

from swiftlm_engine.brain.kv_extents import Extent, SharedBytes
from swiftlm_engine.brain.prefix_index import Kind
from swiftlm_engine.kv.shared_cache import KVBuffer, SharedKVCache, extents_of, fit, held_nbytes
from swiftlm_engine.prefix.cache import Match, Miss, PrefixCache, Search
from swiftlm_engine.ranks import SINGLE_PROCESS, Ranks
from swiftlm_engine.run.decode_batch import DecodeBatch, Row, RowToken
from swiftlm_engine.run.prompt_scores import PromptScores, pieces
from swiftlm_engine.run.row_caches import Caches, claims_of
from swiftlm_engine.schedule.checkpoints import is_kept_on_the_way
from swiftlm_engine.schedule.sequence import Sequence
from swiftlm_engine.schedule.step import Chunk, PrefillPass
from swiftlm_engine.speculation.speculator import Speculator
from swiftlm_engine.vision.prompt import PromptImages

if TYPE_CHECKING:  # at run time only where the extra `vision` is
    from swiftlm_engine.vision.reader import ImageReader

# Decoding clients wait that long at most for files of somebody else's prefix.
READ_SLICE_S = 0.1
# Scratch of shorter prompts is of the size that decode uses, too: the pool keeps it.
CLEAR_ABOVE_TOKENS = 256
# Up to this history, a pass over the weights costs more than copying the KV in and out of it.
SHARE_UP_TO_TOKENS = 2048
# Kinds that hold every token's exact keys and values and nothing else.
_PLAIN = (KVCache, SharedKVCache)


@dataclass(frozen=True, slots=True)
class RowEnd:
    """A decoding sequence that ends: whether its KV is worth keeping, and how many tokens at its
    end are no part of the text."""

    row: Row
    keep: bool
    overrun: int = 0


class Runner:
    """Owned by the engine thread; every method runs there."""

    def __init__(
        self,
        model: Any,
        make_caches: Callable[[], Caches],
        prefix: PrefixCache,
        stream: Any,
        speculator: Speculator | None = None,
        ranks: Ranks = SINGLE_PROCESS,
        images: ImageReader | None = None,
        before_wait: Callable[[], None] = lambda: None,
        alike: bool = False,
    ) -> None:
        """`before_wait`, `alike`: see `DecodeBatch`."""
        self._model = model
        self._ranks = ranks
        self._make_caches = make_caches
        self._stream = stream
        self._prefix = prefix
        self._prefilling: dict[tuple[str, int], Caches] = {}
        self._salts: dict[str, bytes | None] = {}  # None: keeps out of the prefix cache
        self.images = images
        self._prompt_images: dict[str, PromptImages] = {}  # of the requests that have any
        self._speculator = speculator
        self._searches: dict[tuple[str, int], Search] = {}  # prefixes that are being read from disk
        self._unkept: dict[tuple[str, int], tuple[Sequence, Caches]] = {}  # prompts still to store
        self.batch = DecodeBatch(model, stream, speculator, ranks, before_wait, alike)
        self.notes: dict[tuple[str, int], str] = {}  # why a sequence hit or missed
        self.scores = PromptScores()

    def kv_bytes(self) -> int:
        """Bytes that the caches of all running sequences hold now, but for what the prefix cache
        holds, too."""
        caches = [c for caches in self._prefilling.values() for c in caches]
        caches += [c for caches in self.batch.all_caches() for c in caches]
        return held_nbytes(caches) - self._prefix.bytes_in(extents_of(caches))

    def counted_twice(self, sequences: Iterable[Sequence]) -> int:
        """Bytes that the sum over what these hold counts more than once."""
        return self._held_together(sequences).surplus

    def held_already(self, waiting: Sequence, sequences: Iterable[Sequence]) -> int:
        """Bytes of a waiting sequence's prefix that these hold, in buffers that it would share."""
        salt = self._salts.get(waiting.request_id, b"")
        if salt is None or self.is_split:
            return 0
        held = self._held_together(sequences)
        wanted = self._prefix.claims(self._cache_ids(waiting, waiting.prefill_ids), salt)
        return sum(min(nbytes, held.of(extent)) for extent, nbytes in wanted)

    def _held_together(self, sequences: Iterable[Sequence]) -> SharedBytes:
        decoding, held = self.batch.claims(), SharedBytes()
        for key in (sequence.key for sequence in sequences):
            claims = decoding.get(key) or claims_of(self._prefilling.get(key, ()))
            for extent, nbytes in claims:
                held.add(extent, nbytes)
        return held

    def kv_compressed_tokens(self) -> int:
        """Tokens of all running sequences that are held in compressed form, in any layer."""
        every = [*self._prefilling.values(), *self.batch.all_caches()]
        return sum(
            max((getattr(c, "num_compressed", 0) for c in each), default=0) for each in every
        )

    @property
    def num_open(self) -> int:
        return len(self._prefilling) + len(self.batch)

    @property
    def is_split(self) -> bool:
        """Other ranks hold their share of every sequence."""
        return self._ranks is not SINGLE_PROCESS

    def set_salt(self, request_id: str, salt: bytes | None) -> None:
        """Requests with different salts share no prefix; None keeps out of the cache altogether."""
        self._salts[request_id] = salt

    def set_images(self, request_id: str, images: PromptImages | None) -> None:
        if images is not None:
            self._prompt_images[request_id] = images

    def open(self, sequence: Sequence) -> int | None:
        """Gives a sequence its caches; returns how many prompt tokens a prefix hit spares.

        None: the prefix is still being read from disk, call again in the next step.
        """
        salt = self._salts.get(sequence.request_id, b"")
        if salt is None:
            return self._open_cold(sequence, "cache off for this request")
        self._keep(list(self._unkept))  # it may begin like one of them
        found = self._search(sequence, salt)
        if found is None:
            return None
        if not isinstance(found, Match):
            return self._open_cold(sequence, found.reason.value)
        self._ranks.resume(sequence.key)
        self._prefilling[sequence.key] = found.caches
        if self.scores.wants(sequence):
            self.scores.begin(sequence, found.length)
        self.notes[sequence.key] = f"hit ({found.source.value}, {found.reason.value})"
        return found.length

    def _search(self, sequence: Sequence, salt: bytes) -> Match | Miss | None:
        """One slice of looking for a prefix: files are read for `READ_SLICE_S` at most."""
        search = self._searches.pop(sequence.key, None)
        if search is None:
            ids = sequence.prefill_ids
            if self.scores.wants(sequence):
                ids = ids[: self.scores.recall(sequence)]
            search = self._prefix.search(self._cache_ids(sequence, ids), salt)
        until = time.perf_counter() + READ_SLICE_S
        try:
            while next(search) and time.perf_counter() < until:
                pass
        except StopIteration as end:
            found: Match | Miss = end.value
            return found
        self._searches[sequence.key] = search
        return None

    def _give_up_search(self, sequence: Sequence) -> None:
        if search := self._searches.pop(sequence.key, None):
            search.close()

    def _open_cold(self, sequence: Sequence, reason: str) -> int:
        self._ranks.open(sequence.key)
        self._prefilling[sequence.key] = self._make_caches()
        if self.scores.wants(sequence):
            self.scores.begin(sequence, 0)
        self.notes[sequence.key] = f"miss: {reason}"
        return 0

    def prefill(self, chunks: Sequence_[Chunk]) -> tuple[PrefillPass, ...]:
        """Evaluates prompt tokens, short ends of prompts in one pass."""
        if chunks and self._speculator is not None:
            self._speculator.interrupt()
        together = tuple(chunk for chunk in chunks if self._can_share_a_pass(chunk))
        if len(together) < 2:
            together = ()
        passes = [PrefillPass(together, self._prefill_together(together))] if together else []
        for chunk in chunks:
            if chunk not in together:
                passes.append(PrefillPass((chunk,), self._prefill_alone(chunk)))
            self._checkpoint(chunk)
        return tuple(passes)

    def _can_share_a_pass(self, chunk: Chunk) -> bool:
        """Plain KV of a short history: joining and parting copy it."""
        if self.is_split:
            return False  # other ranks mirror one prompt at a time
        if chunk.sequence.request_id in self._prompt_images or self.scores.wants(chunk.sequence):
            return False
        caches = self._prefilling[chunk.sequence.key]
        plain = all(type(cache) in _PLAIN for cache in caches)
        return plain and chunk.is_short and chunk.start <= SHARE_UP_TO_TOKENS

    def _prefill_together(self, chunks: Sequence_[Chunk]) -> float:
        """One pass over the weights for several prompts, padded on the right to the longest."""
        started = time.perf_counter()
        longest = max(chunk.count for chunk in chunks)
        padding = [longest - chunk.count for chunk in chunks]
        rows = zip(chunks, padding, strict=True)
        ids = [[*chunk_ids(chunk), *[0] * missing] for chunk, missing in rows]
        own = [self._prefilling[chunk.sequence.key] for chunk in chunks]
        merged = [BatchKVCache.merge(list(layer)) for layer in zip(*own, strict=True)]
        with mx.stream(self._stream):
            for cache in merged:
                cache.prepare(right_padding=padding)
            self._model(mx.array(ids, dtype=mx.int32), cache=merged)
            for cache in merged:
                cache.finalize()
            for i, chunk in enumerate(chunks):
                alone = [cache.extract(i) for cache in merged]
                mx.eval([cache.state for cache in alone])
                pairs = zip(alone, own[i], strict=True)
                caches = [old.taking(new) if hasattr(old, "taking") else new for new, old in pairs]
                self._prefilling[chunk.sequence.key] = caches
        return time.perf_counter() - started

    def _prefill_alone(self, chunk: Chunk) -> float:
        started = time.perf_counter()
        caches = self._prefilling[chunk.sequence.key]
        ids = chunk_ids(chunk)
        self._ranks.prefill(chunk.sequence.key, ids)
        with mx.stream(self._stream), self._shown(chunk) as shown:
            if self.scores.wants(chunk.sequence):
                self._score(chunk, caches)
            else:
                self._model(mx.array([ids], dtype=mx.int32), cache=caches, **shown)
            mx.eval([c.state for c in caches])
        if chunk.start + chunk.count == chunk.sequence.num_prefill > CLEAR_ABOVE_TOKENS:
            self._ranks.clear_pool()
            mx.clear_cache()  # its scratch is larger than anything decode asks for
        return time.perf_counter() - started

    def _score(self, chunk: Chunk, caches: Caches) -> None:
        sequence = chunk.sequence
        for start, count in pieces(chunk.start, chunk.count):
            ids = sequence.prompt_ids[start : start + count]
            logits = self._model(mx.array([ids], dtype=mx.int32), cache=caches)
            self.scores.add(sequence, logits)
            mx.eval([c.state for c in caches])

    def start_decode(self, rows: list[Row]) -> None:
        """Moves prefilled sequences into the decode batch."""
        for row in rows:
            self._ranks.join(row.sequence.key)
            # Positions behind pictures are known during a step only.
            row.may_replay = row.sequence.request_id not in self._prompt_images
        self.batch.add(rows, [self._prefilling.pop(row.sequence.key) for row in rows])

    def decode(self) -> list[RowToken]:
        if self.images is None or not self._prompt_images:
            return self.batch.step()
        rows = [self._prompt_images.get(row.sequence.request_id) for row in self.batch.rows]
        with self.images.decode_pass(rows):
            return self.batch.step()

    def close(self, sequence: Sequence, *, keep: bool, overrun: int = 0) -> None:
        """Takes a sequence out, wherever it is; `keep` stores its KV for the next request.

        `overrun` tokens at its end are no part of the text (a checked pass went too far).
        """
        self._give_up_search(sequence)
        ids = self._held_ids(sequence, self._row_of(sequence))
        caches = self._take(sequence, overrun)
        left = self._let_go(sequence, caches, ids, keep=keep, overrun=overrun)
        fit(left)

    def close_rows(self, ends: Sequence_[RowEnd]) -> None:
        """Takes decoding sequences out that end in the same step."""
        if self.is_split:  # other ranks keep a prefix of the sequence that left last
            for end in ends:
                self.close(end.row.sequence, keep=end.keep, overrun=end.overrun)
            return
        removed = self.batch.remove([end.row for end in ends], [end.overrun for end in ends])
        left: list[Extent[KVBuffer]] = []
        for end in ends:
            ids, caches = self._held_ids(end.row.sequence, end.row), removed.pop(0)
            sequence = end.row.sequence
            left += self._let_go(sequence, caches, ids, keep=end.keep, overrun=end.overrun)
            del caches
        fit(left)

    def _let_go(
        self,
        sequence: Sequence,
        caches: Caches | None,
        held_ids: list[int],
        *,
        keep: bool,
        overrun: int,
    ) -> list[Extent[KVBuffer]]:
        """The buffers it was in, of which others may hold a part."""
        if overrun and caches is not None:
            del sequence.output_ids[-overrun:]
            del held_ids[-overrun:]
        self._unkept.pop(sequence.key, None)  # covered by what is stored now
        if self._speculator is not None:
            self._speculator.forget(sequence)
        salt = self._salts.get(sequence.request_id, b"")
        if keep and caches is not None and salt is not None and held_ids:
            self._prefix.store(
                self._cache_ids(sequence, held_ids), caches, Kind.TURN, salt, sequence.system_length
            )
        self.notes.pop(sequence.key, None)
        return extents_of(caches or ())

    def preempt(self, sequence: Sequence) -> None:
        """Takes the caches of a sequence that waits again; it finds them in the prefix cache, if
        there is room."""
        self._give_up_search(sequence)
        self._unkept.pop(sequence.key, None)
        row = self._row_of(sequence)
        if row is None:
            if self._prefilling.pop(sequence.key, None) is not None:
                self._ranks.drop(sequence.key)
            return
        self._ranks.drop(sequence.key)
        held_ids = sequence.prefill_ids[:-1] if row.fresh else sequence.prefill_ids
        caches = self.batch.preempt(row)
        salt = self._salts.get(sequence.request_id, b"")
        if salt is not None:
            ids = self._cache_ids(sequence, held_ids)
            self._prefix.store(ids, caches, Kind.TURN, salt, sequence.system_length)

    def forget_request(self, request_id: str) -> None:
        self._salts.pop(request_id, None)
        self.scores.forget(request_id)
        self._prompt_images.pop(request_id, None)

    def clear_pool(self) -> None:
        """On every rank. On the MLX thread, between two steps."""
        self._ranks.clear_pool()
        mx.clear_cache()

    def reset(self) -> None:
        """Drops every open sequence (a step broke)."""
        for search in self._searches.values():
            search.close()
        self._searches.clear()
        self._ranks.reset()
        self._prefilling.clear()
        self._unkept.clear()
        self.batch.clear()
        if self._speculator is not None:
            self._speculator.forget_all()
        self.notes.clear()
        mx.clear_cache()

    def _take(self, sequence: Sequence, overrun: int = 0) -> Caches | None:
        if sequence.key in self._prefilling:
            self._ranks.drop(sequence.key)
            return self._prefilling.pop(sequence.key)
        if row := self._row_of(sequence):
            self._ranks.drop(sequence.key)
            return self.batch.remove([row], [overrun])[0]
        return None

    def _row_of(self, sequence: Sequence) -> Row | None:
        return next((row for row in self.batch.rows if row.sequence is sequence), None)

    @staticmethod
    def _held_ids(sequence: Sequence, row: Row | None) -> list[int]:
        """The tokens that the caches of a sequence hold: what is prefilled, until it has a row.

        A row that is not fresh has dispatched its last known token, read or not.
        """
        if row is None:
            return sequence.prefill_slice(0, sequence.prefilled)
        ids = sequence.prompt_ids + sequence.output_ids
        return ids[:-1] if row.fresh else ids

    def _checkpoint(self, chunk: Chunk) -> None:
        """Stores a checkpoint where one was asked for; if none was, at the prompt's end and, of a
        model that cannot go back, at some ends of chunks before it.

        At the end, so that requests with the same beginning hit while this one still decodes; what
        serves any shorter prefix can wait until its client has read something.
        """
        sequence, position = chunk.sequence, chunk.start + chunk.count
        salt = self._salts.get(sequence.request_id, b"")
        if salt is None or position == 0:
            return
        wanted = sequence.boundaries or (sequence.num_prefill,)
        on_the_way = sequence.keeps_chunks and is_kept_on_the_way(
            chunk.start, position, sequence.num_prefill
        )
        if position not in wanted and not on_the_way:
            return
        caches = self._prefilling[sequence.key]
        if not self.is_split and all(type(cache) in _PLAIN for cache in caches):
            self._unkept[sequence.key] = sequence, caches
            return
        first_of_several = len(wanted) > 1 and position == wanted[0]
        kind = Kind.SYSTEM if first_of_several else Kind.PROMPT
        self._ranks.offer(sequence.key)
        ids = self._cache_ids(sequence, sequence.prefill_slice(0, position))
        self._prefix.store(ids, caches, kind, salt)

    def keep_prompts(self) -> None:
        """Stores prompts whose second token was read: the device has the next ones to compute."""
        self._keep([key for key, (one, _) in self._unkept.items() if len(one.output_ids) > 1])

    def _keep(self, keys: list[tuple[str, int]]) -> None:
        """The caches hold the prompt or, where they decode alone, what was read of the answer."""
        for key in keys:
            sequence, caches = self._unkept.pop(key)
            ids = (sequence.prompt_ids + sequence.output_ids)[: caches[0].offset]
            salt = self._salts[sequence.request_id] or b""
            self._prefix.store(
                self._cache_ids(sequence, ids), caches, Kind.PROMPT, salt, sequence.system_length
            )

    def _shown(self, chunk: Chunk) -> AbstractContextManager[dict[str, mx.array]]:
        """What the pass over a chunk is told of the images of its prompt."""
        images = self._prompt_images.get(chunk.sequence.request_id)
        if images is None or self.images is None:
            return nullcontext({})
        return self.images.prompt_pass(chunk_ids(chunk), chunk.start, images)

    def _cache_ids(self, sequence: Sequence, token_ids: list[int]) -> list[int]:
        """What the prefix cache knows these tokens by: images by their content."""
        images = self._prompt_images.get(sequence.request_id)
        return token_ids if images is None else images.cache_ids(token_ids)


def chunk_ids(chunk: Chunk) -> list[int]:
    return chunk.sequence.prefill_slice(chunk.start, chunk.start + chunk.count)
