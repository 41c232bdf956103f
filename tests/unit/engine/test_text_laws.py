"""Laws of text in and out, for every kind of tokenizer.

The prompt and the completion, joined, are what the tokenizer decodes from all ids at once; in any
pieces; and a text that goes on keeps its first space.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_tokenizers import tokenizer as byte_level
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from swiftlm_engine.grammar.row_constraint import MadeConstraints
from swiftlm_engine.messages import GenerateJob, Infill
from swiftlm_engine.prompt.prepare import Preparer
from swiftlm_engine.text.chat import Chat, Message, TextPart
from swiftlm_engine.text.detokenizer import TokenTexts
from swiftlm_engine.text.encoder import Encoder
from swiftlm_engine.text.events import TextFinish
from swiftlm_engine.text.model_text import ModelText
from swiftlm_engine.text.output_parser import OutputOptions

WORDS = ("▁", "▁▁▁▁", "▁the", "▁capital", "▁is", "▁Paris", "Paris", "s", ".", "é", "你", "好", "\n")
FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if not loop.last %}</s>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def _wrapped(backend: Tokenizer) -> PreTrainedTokenizerFast:
    backend.add_special_tokens([AddedToken(t, special=True) for t in ("<s>", "</s>", *FIM)])
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>",
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
    made.chat_template = TEMPLATE
    return made


def sentencepiece(*, strips: bool = True) -> PreTrainedTokenizerFast:
    """Llama 2's, Mistral's and Phi-3's make: byte fallback, and a first space that is not shown."""
    letters = [chr(c) for c in range(33, 127)]
    pieces = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), *letters, *WORDS]
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    backend = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if strips:
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    return _wrapped(backend)


def unigram() -> PreTrainedTokenizerFast:
    pieces = [("<unk>", -9.0), *((w, -1.0) for w in WORDS)]
    pieces += [(chr(c), -4.0) for c in range(33, 127) if chr(c) not in WORDS]
    backend = Tokenizer(models.Unigram(pieces, 0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return _wrapped(backend)


MADE = {
    "byte level": byte_level(TEMPLATE, ("<s>", "</s>", *FIM), ()),
    "strip": sentencepiece(),
    "byte fallback": sentencepiece(strips=False),
    "unigram": unigram(),
}
KINDS = pytest.mark.parametrize("kind", MADE)


def id_of(made: PreTrainedTokenizerFast, text: str) -> int:
    """A token for the text with its space in front, in the kind's own spelling."""
    spelled = [text.replace(" ", "▁"), text.replace(" ", "Ġ"), text]
    ids = [made.get_vocab()[s] for s in spelled if s in made.get_vocab()]
    return ids[0] if ids else made.encode(text, add_special_tokens=False)[-1]


def shown(made: PreTrainedTokenizerFast, before: list[int], ids: list[int]) -> str:
    detokenizer = TokenTexts(made).start(before)
    return "".join(map(detokenizer.push, ids)) + detokenizer.flush()


def text_ids(made: PreTrainedTokenizerFast, dice: random.Random, count: int) -> list[int]:
    texts = ("the capital is Paris", "    s.", " 你好é", "\n\n  the", "x" * 3, "Paris ")
    ids: list[int] = []
    while len(ids) < count:
        ids += made.encode(dice.choice(texts), add_special_tokens=False)
    return ids[:count]


@KINDS
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_prompt_and_completion_are_the_decoding_of_all_ids(kind: str, seed: int) -> None:
    made, dice = MADE[kind], random.Random(seed)
    ids = text_ids(made, dice, 24)
    # A cut inside a character belongs to neither side.
    cuts = [n for n in range(1, 20) if "\ufffd" not in made.decode(ids[:n]) + made.decode(ids[n:])]
    for cut in cuts:
        prompt, completion = ids[:cut], ids[cut:]
        assert made.decode(prompt) + shown(made, prompt, completion) == made.decode(ids)


@KINDS
def test_a_continuation_keeps_its_first_space(kind: str) -> None:
    made = MADE[kind]
    paris = made.encode("is Paris", add_special_tokens=False)[1:]
    paris = [id_of(made, " Paris")] if kind != "byte level" else paris
    prompt = made.encode("the capital is")
    text = ModelText(made)
    parser = text.output(OutputOptions(), before=prompt)
    said = [e for i in paris for e in parser.push(i)] + parser.finish(TextFinish.STOP)
    whole = made.decode([*prompt, *paris], skip_special_tokens=True)
    head = made.decode(prompt, skip_special_tokens=True)
    assert "".join(e.text for e in said) == whole.removeprefix(head)
    assert whole.endswith("Paris")


def preparer(made: PreTrainedTokenizerFast) -> Preparer:
    constraints = lambda job, prompt: MadeConstraints((None,) * job.n)  # noqa: E731
    encoder = Encoder(made)
    return Preparer("m", made, encoder, lambda job, chat: None, constraints, 512, len(made), 4)


@KINDS
@pytest.mark.parametrize("prompt", ["the capital is", "  Paris", "x</s>y", "你好\n"])
def test_an_echo_returns_the_prompt_as_it_was_sent(kind: str, prompt: str) -> None:
    prepared = preparer(MADE[kind]).prepare(GenerateJob("a", prompt, echo=True, max_tokens=1))
    assert prepared.echo_text == prompt


class BosTokenizer:
    """A tokenizer that begins every text with its token for that."""

    def __init__(self, made: PreTrainedTokenizerFast) -> None:
        self._made = made

    def __getattr__(self, name: str) -> object:
        return getattr(self._made, name)

    def __len__(self) -> int:
        return len(self._made)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        start = [self._made.bos_token_id] if add_special_tokens else []
        return [*start, *self._made.encode(text, add_special_tokens=False)]


def test_infill_begins_as_every_text_of_the_tokenizer_does() -> None:
    made = MADE["strip"]
    for tokenizer, start in ((BosTokenizer(made), ["<s>"]), (made, [])):
        ids = preparer(tokenizer).tokenise(GenerateJob("a", Infill("x", "y"))).token_ids
        tokens = made.convert_ids_to_tokens(ids)
        assert tokens[: len(start) + 1] == [*start, FIM[0]]


def test_a_fresh_turn_starts_a_text_of_its_own() -> None:
    made = MADE["strip"]
    text = ModelText(made)
    prompt = text.render(Chat((Message("user", (TextPart("the"),)),)))
    parser = text.output(OutputOptions(), prompt)
    said = parser.push(id_of(made, " Paris")) + parser.finish(TextFinish.STOP)
    assert "".join(e.text for e in said) == "Paris"
