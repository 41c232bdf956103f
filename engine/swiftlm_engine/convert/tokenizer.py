"""tokenizer.json and its settings from a GGUF vocabulary; the chat template is carried over."""

from __future__ import annotations

from typing import Any

from swiftlm_engine.convert.errors import ConvertError
from swiftlm_engine.convert.gguf_file import GgufFile

Json = dict[str, Any]  # tokenizer.json: any JSON

_CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 3, 4, 5, 6

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _WORDS + r"|\p{N}" + _REST
_LLAMA3 = _WORDS + r"|\p{N}{1,3}" + _REST
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> Json:
    return {
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": {"Regex": pattern},
                "behavior": "Isolated",
                "invert": False,
            },
            _byte_level(use_regex=False),
        ],
    }


def _byte_level(*, use_regex: bool) -> Json:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


_DIGITS = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        _byte_level(use_regex=True),
    ],
}
# tokenizer.ggml.pre names the way that text is cut before the merges
_CUTS: dict[str, Json] = {
    "smollm": _DIGITS,
    "qwen2": _split(_QWEN2),
    "llama-bpe": _split(_LLAMA3),
    "tekken": _split(_TEKKEN),
    "gpt-2": _byte_level(use_regex=True),
}
_SAME_CUT = {
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "smaug-bpe": "llama-bpe",
    "deepseek-r1-qwen": "qwen2",
}
_NORMALISED = frozenset({"qwen2"})  # NFC before anything else
_BEGINS = frozenset({"llama-bpe", "tekken"})  # prompts begin with bos unless the file denies it


def tokenizer_json(file: GgufFile) -> Json:
    kind = file.need("tokenizer.ggml.model")
    if kind == "gpt2":
        return _byte_level_bpe(file)
    if kind == "llama":
        return _sentencepiece_bpe(file)
    raise ConvertError(f"{file.path.name} has a {kind} vocabulary; only BPE ones can be imported")


def tokenizer_config(file: GgufFile) -> Json:
    tokens = file.need("tokenizer.ggml.tokens")

    def token(name: str) -> str | None:
        number = file.get(f"tokenizer.ggml.{name}_token_id")
        return None if number is None else tokens[number]

    config: Json = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": _begins_with_bos(file),
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.need_arch("context_length"),
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "pad_token": token("padding") or token("eos"),
        "unk_token": token("unknown"),
    }
    if template := file.get("tokenizer.chat_template"):
        config["chat_template"] = template
    return config


def token_ids(file: GgufFile) -> Json:
    """The ids for config.json and generation_config.json; eos lists every end of a turn."""
    eos = file.need("tokenizer.ggml.eos_token_id")
    names = ("eot", "eom")
    ends = [eos, *(file.get(f"tokenizer.ggml.{n}_token_id") for n in names)]
    unique = list(dict.fromkeys(i for i in ends if i is not None))
    unique += [i for i in _turn_ends(file) if i not in unique]
    return {
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": unique[0] if len(unique) == 1 else unique,
        "pad_token_id": file.get("tokenizer.ggml.padding_token_id", eos),
    }


_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<end_of_turn>")


def _turn_ends(file: GgufFile) -> list[int]:
    """Control tokens that end a turn in the supported families, by text."""
    tokens, kinds = _vocabulary(file)
    wanted = set(_TURN_ENDS)
    return [i for i, t in enumerate(tokens) if t in wanted and kinds[i] == _CONTROL]


def _vocabulary(file: GgufFile) -> tuple[list[str], list[int]]:
    return file.need("tokenizer.ggml.tokens"), file.need("tokenizer.ggml.token_type")


def _added(tokens: list[str], kinds: list[int]) -> list[Json]:
    return [
        {
            "id": i,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == _CONTROL,
        }
        for i, (text, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _bpe(vocab: dict[str, int], merges: list[list[str]], **changes: Any) -> Json:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": merges,
        **changes,
    }


def _byte_level_bpe(file: GgufFile) -> Json:
    pre = _cut(file)
    if pre not in _CUTS:
        raise ConvertError(
            f"{file.path.name} cuts its text by the rule '{pre}', not known here; "
            f"known: {', '.join(sorted(_CUTS))}"
        )
    tokens, kinds = _vocabulary(file)
    merges = [m.split(" ", 1) for m in file.need("tokenizer.ggml.merges")]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(tokens, kinds),
        "normalizer": {"type": "NFC"} if pre in _NORMALISED else None,
        "pre_tokenizer": _CUTS[pre],
        "post_processor": _begin_with_bos(file, tokens),
        "decoder": _byte_level(use_regex=True),
        "model": _bpe(
            {t: i for i, t in enumerate(tokens) if kinds[i] != _UNUSED},
            merges,
            ignore_merges=pre in ("llama-bpe", "tekken"),
        ),
    }


def _cut(file: GgufFile) -> str:
    stated = str(file.get("tokenizer.ggml.pre", "gpt-2"))
    return _SAME_CUT.get(stated, stated)


def _begins_with_bos(file: GgufFile) -> bool:
    usual = file.get("tokenizer.ggml.model") == "llama" or _cut(file) in _BEGINS
    return bool(file.get("tokenizer.ggml.add_bos_token", usual))


def _begin_with_bos(file: GgufFile, tokens: list[str]) -> Json | None:
    if not _begins_with_bos(file):
        return None
    bos = file.need("tokenizer.ggml.bos_token_id")
    first = {"SpecialToken": {"id": tokens[bos], "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            first,
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {tokens[bos]: {"id": tokens[bos], "ids": [bos], "tokens": [tokens[bos]]}},
    }


def _sentencepiece_bpe(file: GgufFile) -> Json:
    tokens, kinds = _vocabulary(file)
    prefix = bool(file.get("tokenizer.ggml.add_space_prefix", file.architecture == "llama"))
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    steps: list[Json] = [{"type": "Prepend", "prepend": "▁"}, space] if prefix else [space]
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = tokens[file.get("tokenizer.ggml.unknown_token_id", 0)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(tokens, kinds),
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": _begin_with_bos(file, tokens),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(
            {t: i for i, t in enumerate(tokens)},
            _merges_of_scores(tokens, kinds, file.need("tokenizer.ggml.scores")),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        ),
    }


def _merges_of_scores(tokens: list[str], kinds: list[int], scores: list[float]) -> list[list[str]]:
    """Every way to cut a piece into two known pieces, the best scored piece first.

    SentencePiece joins the pair whose result scores best; a list of merges in that order does
    the same.
    """
    whole = (_CONTROL, _USER_DEFINED, _BYTE)
    vocab = {t: i for i, t in enumerate(tokens) if kinds[i] not in whole}
    found: list[tuple[float, tuple[str, str]]] = []
    for piece, i in vocab.items():
        cuts = [(piece[:c], piece[c:]) for c in range(1, len(piece))]
        known = [p for p in cuts if p[0] in vocab and p[1] in vocab]
        known.sort(key=lambda p: (vocab[p[0]], vocab[p[1]]))
        found += [(scores[i], p) for p in known]
    found.sort(key=lambda entry: entry[0], reverse=True)  # stable
    return [list(pair) for _, pair in found]
