"""Encoder: text to token ids; a long text in a process that ends when its client leaves."""

from __future__ import annotations

import contextlib
import threading
import time
from array import array
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from swiftlm_engine.isolation.child import ChildFailed
from swiftlm_engine.isolation.children import Children
from swiftlm_engine.isolation.footprint import footprint_bytes
from swiftlm_engine.isolation.work import current
from swiftlm_engine.text import tokenizer_process
from swiftlm_engine.text.boundaries import Encoded
from swiftlm_engine.text.detokenizer import bare
from swiftlm_engine.text.segments import Segments, segments_of
from swiftlm_engine.text.tokenizer_process import COUNT, HEAD, ITEM

LONG_TEXT = 256 * 1024  # characters; below, tokenising takes less than starting a process
_DEADLINE_S = 30.0
_SLOW_S = 3.0  # ten times what the longest text in this process takes
_GROWTH_BYTES = 1 << 30
_S_PER_BYTE = 1e-5  # a slow tokenizer on a busy machine
_LIMIT_BYTES = 1 << 30
_BYTES_PER_BYTE = 256  # what tokenizers hold of a text: pieces, offsets, tokens
_LEAST_TOKEN_BYTES = 32  # where white space or unknown letters count as one token
_MAX_PROCESSES = 2
MAX_TOKENS = 1_000_000  # that are given back where the context is smaller


class TooManyTokens(Exception):
    """More than the context holds. `count` is None where the bytes alone have told."""

    def __init__(self, count: int | None = None) -> None:
        super().__init__(count)
        self.count = count


class TokenizerBroken(Exception):
    """The tokenizer hangs, crashes or eats memory."""


class Encoder:
    """One model's. `context` is None where nothing is too long. Any thread may call it."""

    def __init__(self, tokenizer: Any, context: int | None = None) -> None:
        self._wrapper = tokenizer
        self._tokenizer = bare(tokenizer)
        self._context = context
        self.max_bytes = None if context is None else context * self._longest_token()
        # By thread: since when, and what the process held then.
        self._running: dict[int, tuple[float, int]] = {}
        self._children: Children | None = None
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is not None and context is not None:
            self._children = Children(
                tokenizer_process.__name__,
                lambda: backend.to_str().encode(),
                most=_MAX_PROCESSES,
                keep=False,  # it holds gigabytes after a long text
            )

    def check_size(self, num_chars: int) -> None:
        """Raises TooManyTokens where no tokenizer could make few enough of it."""
        if self.max_bytes is not None and num_chars > self.max_bytes:
            raise TooManyTokens

    def ids(self, text: str, special: bool = True) -> list[int]:
        """Raises TooManyTokens, TokenizerBroken and Cancelled."""
        if self._is_long(text):
            return list(self._apart(text, special).token_ids)
        with self._natively():
            if special:
                return list(self._wrapper.encode(text))
            return list(self._wrapper.encode(text, add_special_tokens=False))

    def with_ends(self, text: str) -> Encoded:
        """Without special tokens, and only what was not tokenised before. Raises as `ids` does."""
        segments = self._segments
        parts = segments.split(text)
        missing = sum(map(len, segments.missing(parts)))
        if missing <= LONG_TEXT and 2 * missing <= len(text):
            return segments.encoded(text, parts, self._here)
        # Most of it is new: in one piece, which is quicker than in many.
        encoded = self._apart(text, special=False) if self._is_long(text) else self._here(text)
        if segments.used:
            segments.learn(encoded, parts)
        return encoded

    @cached_property
    def _segments(self) -> Segments:
        return segments_of(self._tokenizer, self._here)

    def _here(self, text: str) -> Encoded:
        with self._natively():
            encoding = self._tokenizer(
                text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
            )
        ends = [end for _, end in encoding["offset_mapping"]]
        return Encoded(text, tuple(encoding["input_ids"]), ends)

    def stuck(self) -> str:
        """What a call in this process does that cannot be ended; empty while all is well."""
        now = time.monotonic()
        for began, footprint in list(self._running.values()):
            if now - began > _DEADLINE_S:
                return f"takes longer than {_DEADLINE_S:g} s"
            if now - began > _SLOW_S and footprint_bytes() - footprint > _GROWTH_BYTES:
                return f"takes more than {_GROWTH_BYTES / 1e9:.1f} GB of memory"
        return ""

    @contextlib.contextmanager
    def _natively(self) -> Iterator[None]:
        """Native code, which lets other threads run but cannot be stopped."""
        thread = threading.get_ident()
        with current().waiting():
            self._running[thread] = (time.monotonic(), footprint_bytes())
            try:
                yield
            except BaseException as error:  # a panic of native code is no Exception
                if isinstance(error, Exception) or type(error).__name__ != "PanicException":
                    raise
                raise TokenizerBroken(f"fails: {str(error)[:200]}") from error
            finally:
                del self._running[thread]

    def _is_long(self, text: str) -> bool:
        return self._children is not None and len(text) > LONG_TEXT

    def _apart(self, text: str, special: bool) -> Encoded:
        assert self._children is not None
        content = text.encode("utf-8", "replace")
        limit = max(self._context or 0, MAX_TOKENS)
        memory = _LIMIT_BYTES + _BYTES_PER_BYTE * len(content)
        deadline_s = _DEADLINE_S + _S_PER_BYTE * len(content)
        try:
            answer = self._children.ask(HEAD.pack(special, limit) + content, deadline_s, memory)
        except ChildFailed as error:
            raise TokenizerBroken(error.went) from error
        (count,) = COUNT.unpack_from(answer)
        if count > limit:
            raise TooManyTokens(count)
        numbers = array(ITEM)
        numbers.frombytes(answer[COUNT.size :])
        return Encoded(text, tuple(numbers[:count]), numbers[count:])

    def _longest_token(self) -> int:
        longest = max((len(token.encode()) for token in self._tokenizer.get_vocab()), default=0)
        return max(longest, _LEAST_TOKEN_BYTES)
