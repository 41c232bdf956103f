"""What was tokenised once is not tokenised again, and the ids are those of the whole text."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from text_tokenizers import WORDS, tokenizer
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from swiftlm_engine.text.boundaries import Boundaries
from swiftlm_engine.text.chat import Chat, Message, TextPart
from swiftlm_engine.text.encoder import Encoder
from swiftlm_engine.text.segments import MAX_CHARS, cuts_of
from swiftlm_engine.text.template import ChatTemplate

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")


def trained(kind: str, **parts: Any) -> PreTrainedTokenizerFast:
    unigram = kind == "unigram"
    backend = Tokenizer(models.Unigram() if unigram else models.BPE(byte_fallback=False))
    for name, part in parts.items():
        setattr(backend, name, part)
    made = trainers.UnigramTrainer if unigram else trainers.BpeTrainer
    letters = sorted(set("".join(WORDS)) | set("\n ▁é中"))
    unknown = {"unk_token": "<unk>", "special_tokens": ["<unk>"]} if unigram else {}
    trainer = made(vocab_size=300, show_progress=False, initial_alphabet=letters, **unknown)
    backend.train_from_iterator(WORDS, trainer)
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    backend.add_tokens([AddedToken("<think>", normalized=False), AddedToken("Tool Call")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False)


@cache
def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    metaspace = pre_tokenizers.Metaspace
    llama = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return {
        "byte level": tokenizer(),
        "byte level, space": trained(
            "bpe",
            pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True),
            decoder=decoders.ByteLevel(),
            post_processor=processors.ByteLevel(trim_offsets=True),
        ),
        "metaspace first": trained("bpe", pre_tokenizer=metaspace(prepend_scheme="first")),
        "metaspace always": trained("bpe", pre_tokenizer=metaspace(prepend_scheme="always")),
        "unigram": trained("unigram", pre_tokenizer=metaspace(prepend_scheme="first")),
        "llama": trained("bpe", normalizer=llama),
        "lower case": trained("bpe", normalizer=normalizers.Lowercase()),
        "strip": trained("bpe", normalizer=normalizers.Strip()),
    }


def whole(made: Any, text: str) -> tuple[list[int], list[int]]:
    encoding = made(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return list(encoding["input_ids"]), [end for _, end in encoding["offset_mapping"]]


def texts(seed: int, special: list[str]) -> list[str]:
    draw = random.Random(seed)
    halves = [token[: len(token) // 2] for token in special]
    words = [
        *special * 3,
        *halves,
        " ",
        "  ",
        "\n",
        "the ",
        "user",
        "é",
        "中",
        "😀\u200d",
        "<",
        "|>",
    ]
    words += ["<think>", "Tool Call", "tool call", "\ufeff", "weather"]
    return ["".join(draw.choices(words, k=draw.randint(1, 30))) for _ in range(60)]


@pytest.mark.parametrize("kind", tokenizers())
def test_ids_and_ends_are_those_of_the_whole_text(kind: str) -> None:
    made = tokenizers()[kind]
    encoder = Encoder(made)
    assert encoder._segments.used, "nothing is cut"
    conversation = ""
    for text in texts(1, cuts_of(made)):
        for said in (text, conversation := (conversation + text)[-4000:]):
            encoded = encoder.with_ends(said)
            assert (list(encoded.token_ids), list(encoded.ends)) == whole(made, said)
            assert encoded.tokens_before(len(said)) == len(encoded.token_ids)


def test_a_tokenizer_without_a_token_for_a_letter_tokenises_what_it_can() -> None:
    backend = Tokenizer(models.Unigram([("a", -1.0)]))
    backend.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    encoder = Encoder(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert encoder.with_ends("<s>a<s>").token_ids == (1, 0, 1)


def asked(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is tokenised from now on."""
    found: list[str] = []
    here: Callable[[str], Any] = encoder._here

    def noted(text: str) -> Any:
        found.append(text)
        return here(text)

    monkeypatch.setattr(encoder, "_here", noted)
    return found


def test_a_turn_tokenises_what_is_new_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder(tokenizer())
    turns = [f"<|im_start|>user\nquestion {i} the weather<|im_end|>\n" for i in range(50)]
    encoder.with_ends("".join(turns))
    found = asked(encoder, monkeypatch)
    last = "<|im_start|>user\nand now<|im_end|>\n"
    encoder.with_ends("".join([*turns, last]))
    assert found == ["<|im_start|>user\nand now"]


def test_what_is_remembered_is_bounded() -> None:
    encoder = Encoder(tokenizer())
    segments = encoder._segments
    for i in range(40):
        encoder.with_ends(f"<|im_start|>{i}" + "the " * (MAX_CHARS // 100))
    assert segments._num_chars == sum(map(len, segments._known)) <= MAX_CHARS


@pytest.mark.parametrize(
    "added",
    [
        ("<s>", "x<s>"),  # one in another
        ("<s>", "<s>x"),
        ("<s>", "ab<", "<s>>"),  # one that ends as another begins
        ("aXa",),  # and as it begins itself
    ],
)
def test_tokens_that_meet_others_cut_nothing(added: tuple[str, ...]) -> None:
    made = trained("bpe", pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False))
    made.add_special_tokens({"additional_special_tokens": list(added)})
    assert added[0] not in cuts_of(made)
    for text in texts(2, [*added, *added]):
        encoded = Encoder(made).with_ends(text)
        assert (list(encoded.token_ids), list(encoded.ends)) == whole(made, text)


def test_a_conversation_that_grew_is_digested_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each earlier turn had the whole beginning hashed again."""
    hashed = 0
    template = ChatTemplate(tokenizer())
    messages: list[Message] = []
    for i in range(40):
        messages.append(Message("user" if i % 2 == 0 else "assistant", (TextPart("word " * 50),)))
        template.render(Chat(tuple(messages)))
    digest = Boundaries.__module__ + "._digest"

    def noted(*parts: str) -> bytes:
        nonlocal hashed
        hashed += sum(map(len, parts))
        return original(*parts)

    from swiftlm_engine.text import boundaries

    original = boundaries._digest
    monkeypatch.setattr(digest, noted)
    prompt = template.render(Chat(tuple(messages)))
    assert len(prompt.boundaries) >= 20
    assert hashed < 8 * len(prompt.text)
