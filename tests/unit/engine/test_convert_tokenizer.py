"""A SentencePiece vocabulary without merges tokenises as SentencePiece's own rule says."""

import itertools
import json
from pathlib import Path

import pytest
from gguf import GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from swiftlm_engine.convert import tokenizer as subject
from swiftlm_engine.convert.errors import ConvertError
from swiftlm_engine.convert.gguf_file import GgufFile

WORDS = ["he", "ll", "lo", "ell", "hell", "hello", "▁h", "▁hello", "ab", "abc", "bc"]
PIECES = ["▁", *"abcdeloh", *WORDS]
CONTROL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{b:02X}>" for b in range(256)]
TOKENS = CONTROL + BYTES + PIECES
SCORES = [0.0] * (3 + 256) + [-float(i * 7 % 19) for i in range(len(PIECES))]
KINDS = [2, 3, 3] + [6] * 256 + [1] * len(PIECES)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    return GgufFile(write(tmp_path_factory.mktemp("spm") / "v.gguf", "llama"))


def write(path: Path, model: str, pre: str = "") -> Path:
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_tokenizer_model(model)
    if pre:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_scores(SCORES)
    writer.add_token_types(KINDS)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def reference(text: str) -> list[int]:
    """SentencePiece's rule, the slow way: join the neighbours whose union scores best."""
    ids = {t: i for i, t in enumerate(TOKENS)}
    mergeable = set(PIECES)
    symbols = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [
            (SCORES[ids[a + b]], -at, at)
            for at, (a, b) in enumerate(itertools.pairwise(symbols))
            if a in mergeable and b in mergeable and a + b in mergeable
        ]
        if not pairs:
            break
        at = max(pairs)[2]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    out = [ids["<s>"]]
    for symbol in symbols:
        if symbol in ids:
            out.append(ids[symbol])
        else:
            out += [ids[f"<0x{b:02X}>"] for b in symbol.encode()]
    return out


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="abcdeloh zé", max_size=24).filter(lambda t: t != ""))
def test_tokens_are_those_of_the_slow_rule(file: GgufFile, text: str) -> None:
    fast = Tokenizer.from_str(_json(file))
    assert fast.encode(text).ids == reference(text)


def test_text_comes_back(file: GgufFile) -> None:
    fast = Tokenizer.from_str(_json(file))
    text = "hello abc zé"
    assert fast.decode(fast.encode(text).ids, skip_special_tokens=True) == text


def test_unknown_cut_rule_is_refused(tmp_path: Path) -> None:
    source = GgufFile(write(tmp_path / "v.gguf", "gpt2", pre="mystery"))
    with pytest.raises(ConvertError, match="rule 'mystery', not known"):
        subject.tokenizer_json(source)


def test_other_kinds_of_vocabulary_are_refused(tmp_path: Path) -> None:
    source = GgufFile(write(tmp_path / "v.gguf", "bert"))
    with pytest.raises(ConvertError, match="bert vocabulary"):
        subject.tokenizer_json(source)


def _json(file: GgufFile) -> str:
    return json.dumps(subject.tokenizer_json(file))
