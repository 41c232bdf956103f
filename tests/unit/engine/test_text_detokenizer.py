"""Promises of the detokeniser: deltas join to the whole text, no half characters, linear time."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from swiftlm_engine.text.detokenizer import REPLACEMENT, TokenTexts
from swiftlm_engine.text.events import ContentDelta, TextFinish
from swiftlm_engine.text.markers import MARK
from swiftlm_engine.text.output_parser import OutputOptions, OutputParser

CORPUS = ["the quick brown fox , jumps over the lazy dog . " * 5, "hello world 你好 naïve"]
SPECIALS = ["<|end|>", "<|call|>"]


def _wrap(backend: Tokenizer) -> PreTrainedTokenizerFast:
    backend.add_special_tokens([AddedToken(t, special=True) for t in SPECIALS])
    backend.add_tokens([AddedToken("<think>"), AddedToken("x é")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    return _wrap(backend)


def byte_fallback_tokenizer() -> PreTrainedTokenizerFast:
    pieces = ["<unk>", *(f"<0x{b:02X}>" for b in range(256))]
    words = ["▁", "▁the", "▁fox", "▁world", "hello", ",", ".", "o", "x", "你"]
    vocab = {t: i for i, t in enumerate(pieces + words)}
    backend = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return _wrap(backend)


def metaspace_tokenizer() -> PreTrainedTokenizerFast:
    words = ["▁", "▁the", "▁fox", "▁jump", "s", "er", ",", ".", "é", "你", "好"]
    backend = Tokenizer(models.Unigram([("<unk>", -9.0), *((w, -1.0) for w in words)], 0))
    backend.decoder = decoders.Metaspace()
    return _wrap(backend)


TOKENIZERS = {
    "byte level": byte_level_tokenizer(),
    "byte fallback": byte_fallback_tokenizer(),
    "metaspace": metaspace_tokenizer(),
}


def deltas(texts: TokenTexts, ids: list[int]) -> list[str]:
    detokenizer = texts.start()
    return [*map(detokenizer.push, ids), detokenizer.flush()]


def bytes_to_ids(tokenizer: PreTrainedTokenizerFast, data: bytes) -> list[int]:
    """One token per byte."""
    if tokenizer is TOKENIZERS["byte fallback"]:
        return [tokenizer.convert_tokens_to_ids(f"<0x{b:02X}>") for b in data]
    chars = {bytes_: i for i, bytes_ in _single_bytes(tokenizer).items()}
    return [chars[bytes([b])] for b in data]


def _single_bytes(tokenizer: PreTrainedTokenizerFast) -> dict[int, bytes]:
    texts = TokenTexts(tokenizer)
    return {i: b for i in range(len(tokenizer)) if len(b := texts.bytes_of(i)) == 1}


@pytest.mark.parametrize("name", ["byte level", "metaspace"])
def test_joined_deltas_equal_the_decoding_of_any_token_sequence(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    texts = TokenTexts(tokenizer)

    @settings(max_examples=150, deadline=None)
    @given(st.lists(st.integers(0, len(tokenizer) - 1), max_size=40))
    def check(ids: list[int]) -> None:
        assert "".join(deltas(texts, ids)) == tokenizer.decode(ids, skip_special_tokens=True)

    check()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(["▁the", "▁fox", "hello", ",", "▁", "你", "<|end|>"])), st.text())
def test_byte_fallback_deltas_join_to_the_text_when_the_bytes_are_utf8(
    words: list[str], tail: str
) -> None:
    tokenizer = TOKENIZERS["byte fallback"]
    ids = tokenizer.convert_tokens_to_ids(words)
    ids += bytes_to_ids(tokenizer, tail.replace(MARK, "").encode("utf-8", "ignore"))
    got = "".join(deltas(TokenTexts(tokenizer), ids))
    assert got == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("name", ["byte level", "byte fallback"])
@pytest.mark.parametrize("text", ["👩‍💻", "🇨🇭 日本語", "naïve — 🌸"])
def test_a_character_split_over_tokens_never_shows_a_replacement(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    pieces = deltas(TokenTexts(tokenizer), bytes_to_ids(tokenizer, text.encode()))
    assert "".join(pieces) == text
    assert not any(REPLACEMENT in piece for piece in pieces)


def test_an_incomplete_character_is_shown_only_by_the_flush() -> None:
    tokenizer = TOKENIZERS["byte level"]
    ids = bytes_to_ids(tokenizer, "🌸".encode()[:3])
    assert deltas(TokenTexts(tokenizer), ids) == ["", "", "", REPLACEMENT]


@pytest.mark.parametrize("name", ["byte level", "byte fallback"])
@pytest.mark.parametrize("cut", range(1, 4))
def test_a_cut_by_length_shows_no_half_character(name: str, cut: int) -> None:
    tokenizer = TOKENIZERS[name]
    ids = bytes_to_ids(tokenizer, "実🌸".encode()[: 3 + cut])
    for reason, shown in ((TextFinish.LENGTH, "実"), (TextFinish.STOP, "実" + REPLACEMENT)):
        parser = OutputParser(TokenTexts(tokenizer), OutputOptions())
        events = [event for token in ids for event in parser.push(token)]
        events += parser.finish(reason)
        said = "".join(event.text for event in events if isinstance(event, ContentDelta))
        assert said.rstrip(REPLACEMENT) + REPLACEMENT * (REPLACEMENT in said) == shown


def test_bytes_that_are_never_utf8_are_not_held_for_ever() -> None:
    for name in ("byte level", "byte fallback"):
        tokenizer = TOKENIZERS[name]
        detokenizer = TokenTexts(tokenizer).start()
        shown = [detokenizer.push(i) for i in bytes_to_ids(tokenizer, b"\xff" * 20)]
        assert REPLACEMENT in "".join(shown)


def test_control_tokens_are_marked_and_their_spelling_is_not() -> None:
    tokenizer = TOKENIZERS["byte level"]
    texts = TokenTexts(tokenizer, controls=["<|call|>"])
    call, end = tokenizer.convert_tokens_to_ids(SPECIALS[::-1])
    spelled = bytes_to_ids(tokenizer, b"<|call|>")
    assert "".join(deltas(texts, [call, *spelled, end])) == f"{MARK}<|call|><|call|>"


def test_a_spelled_mark_does_not_pass_for_a_control_token() -> None:
    tokenizer = TOKENIZERS["byte level"]
    assert deltas(TokenTexts(tokenizer), bytes_to_ids(tokenizer, MARK.encode()))[2] == REPLACEMENT


def test_kept_special_tokens_are_shown_as_text() -> None:
    tokenizer = TOKENIZERS["byte level"]
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    assert "".join(deltas(TokenTexts(tokenizer, kept=["<|end|>"]), [end])) == "<|end|>"


def test_an_id_outside_the_vocabulary_says_nothing() -> None:
    for tokenizer in TOKENIZERS.values():
        assert "".join(deltas(TokenTexts(tokenizer), [len(tokenizer) + 7])) == ""


def test_time_grows_with_the_number_of_tokens_and_not_with_its_square() -> None:
    tokenizer = TOKENIZERS["byte fallback"]
    texts = TokenTexts(tokenizer)
    hello = tokenizer.convert_tokens_to_ids("hello")

    def seconds(count: int) -> float:
        start = time.thread_time()  # of the CPU: other programs do not count
        deltas(texts, [hello] * count)
        return time.thread_time() - start

    short = min(seconds(500) for _ in range(3))
    assert min(seconds(4000) for _ in range(3)) < 24 * short  # 8 times the tokens; squared is 64
