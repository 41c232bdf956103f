"""Detokeniser: token ids of one sequence to text, in linear time, never half a character.

Joined, the deltas equal what the tokenizer decodes from all ids at once, special tokens left out.
Two ways: a byte-level vocabulary maps each token to bytes and needs no tokenizer afterwards;
any other decodes a short window and shows what the new token added to it. One difference is
meant: of bytes that are no UTF-8, a byte-fallback vocabulary shows the good ones, since they are
shown before the bad one is known.
"""

import codecs
import json
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Protocol

from swiftlm_engine.text.markers import MARK, marked

REPLACEMENT = "\ufffd"
# A character is four bytes at most; a window that still ends in half a character after this
# many tokens holds bytes that are no UTF-8.
MAX_HELD_TOKENS = 8


class TokenTexts:
    """The text of each token of one vocabulary; shared by all sequences of a model.

    `controls` are marked (see markers.py), `kept` are shown as plain text although special.
    """

    def __init__(
        self, tokenizer: Any, controls: Iterable[str] = (), kept: Iterable[str] = ()
    ) -> None:
        # Any: a fast tokenizer of transformers, bare or wrapped by mlx-lm.
        tokenizer = bare(tokenizer)
        self.backend = getattr(tokenizer, "backend_tokenizer", None)
        self.decode = self.backend.decode if self.backend is not None else tokenizer.decode
        self.byte_level = self.backend is not None and _is_byte_level(self.backend)
        special = special_tokens(tokenizer)
        self.special_texts = frozenset(special.values())
        controls, kept = set(controls), set(kept)
        self.control_ids = {i: marked(t) for i, t in special.items() if t in controls}
        self.skipped_ids = {i for i, t in special.items() if t not in controls and t not in kept}
        self._bytes: dict[int, bytes] = {}
        self._anchor: int | None = None  # a token that is a word

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes a token stands for; empty for an id outside the vocabulary."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._find_bytes(token_id)
        return known

    def _find_bytes(self, token_id: int) -> bytes:
        if self.backend is not None:
            token = self.backend.id_to_token(token_id)
            if token is None:
                return b""
            if self.byte_level:
                return _byte_level_bytes(token)
            if len(token) == 6 and token.startswith("<0x"):
                return bytes.fromhex(token[3:5])
        return self._shown_after_a_word(token_id).encode("utf-8", "replace")

    def _shown_after_a_word(self, token_id: int) -> str:
        """What the token adds to a text: alone, some decoders take its leading space away."""
        if self._anchor is None:
            self._anchor = next((i for i in range(256, 4096) if self._reads(i).isalpha()), 0)
        anchor = self._reads(self._anchor)
        return self._reads(self._anchor, token_id).removeprefix(anchor)

    def _reads(self, *token_ids: int) -> str:
        return str(self.decode(list(token_ids), skip_special_tokens=False))

    def start(self, before: Sequence[int] = ()) -> "Detokenizer":
        """`before` are the last tokens of a text that goes on: some decoders take the first space
        of a text away, and only that."""
        if self.byte_level:
            return Detokenizer(self, _ByteDecoder(self))
        return Detokenizer(self, _WindowDecoder(self, before[-MAX_HELD_TOKENS:]))

    @property
    def word_ids(self) -> tuple[int, ...]:
        """A token that is a word: behind it, every token shows all of its text."""
        self._shown_after_a_word(0)
        return () if self._anchor is None else (self._anchor,)


class Detokenizer:
    """One sequence: `push` each token id in order, `flush` once at the end."""

    def __init__(self, texts: TokenTexts, decoder: "_Decoder") -> None:
        self._texts = texts
        self._decoder = decoder

    def push(self, token_id: int) -> str:
        control = self._texts.control_ids.get(token_id)
        if control is not None:
            return self.flush() + control
        if token_id in self._texts.skipped_ids:
            return ""
        # A model that spells the noncharacter must not pass for a control token.
        return self._decoder.take(token_id).replace(MARK, REPLACEMENT)

    def flush(self, *, cut: bool = False) -> str:
        """What is held back, half characters as U+FFFD; `cut`: without them, as the text was ended
        before the model could finish them."""
        rest = self._decoder.flush()
        return rest.rstrip(REPLACEMENT) if cut else rest


class _Decoder(Protocol):
    def take(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


class _ByteDecoder:
    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def take(self, token_id: int) -> str:
        return self._utf8.decode(self._texts.bytes_of(token_id))

    def flush(self) -> str:
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


class _WindowDecoder:
    """The window is the last tokens shown (what follows may need them to decode) and those held."""

    def __init__(self, texts: TokenTexts, before: Sequence[int] = ()) -> None:
        self._texts = texts
        self._shown = list(before)
        self._shown_text = self._decode(self._shown) if before else ""
        self._held: list[int] = []

    def take(self, token_id: int) -> str:
        self._held.append(token_id)
        text = self._decode(self._shown + self._held)
        if text.endswith(REPLACEMENT) and len(self._held) < MAX_HELD_TOKENS:
            return ""
        return self._show(text)

    def flush(self) -> str:
        return self._show(self._decode(self._shown + self._held)) if self._held else ""

    def _show(self, text: str) -> str:
        new = text[len(self._shown_text) :]
        self._shown, self._held = self._held, []
        self._shown_text = self._decode(self._shown)
        return new

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._texts.decode(token_ids, skip_special_tokens=False))


def bare(tokenizer: Any) -> Any:
    """The tokenizer of transformers inside mlx-lm's wrapper."""
    wrapped = type(tokenizer).__name__ == "TokenizerWrapper"
    return vars(tokenizer)["_tokenizer"] if wrapped else tokenizer


def special_tokens(tokenizer: Any) -> dict[int, str]:
    """Ids and texts of the tokens that are no text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        added = backend.get_added_tokens_decoder().items()
        return {i: token.content for i, token in added if token.special}
    ids = getattr(tokenizer, "all_special_ids", ())
    return {i: str(tokenizer.decode([i], skip_special_tokens=False)) for i in ids}


def _is_byte_level(backend: Any) -> bool:
    decoder = backend.decoder
    if decoder is None:
        return False
    return bool(json.loads(decoder.__getstate__()).get("type") == "ByteLevel")


def _byte_level_bytes(token: str) -> bytes:
    table = _char_bytes()
    try:
        return bytes(table[char] for char in token)
    except KeyError:  # an added token, spelled as it reads
        return token.encode()


@cache
def _char_bytes() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte, inverted."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in printable}
    others = [b for b in range(256) if b not in printable]
    return table | {chr(256 + i): b for i, b in enumerate(others)}
