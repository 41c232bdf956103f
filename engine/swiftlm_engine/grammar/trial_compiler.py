"""Compiles grammars in a process of its own, whose death costs one request.

A chain of a thousand definitions overflows the stack of the native compiler, which no exception
can tell of. So every grammar is compiled here first, with less stack than the engine has and
within a time and a size of memory. The first question is the vocabulary, the others are grammars.
"""

import json

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from swiftlm_engine.isolation.serve import Handler, serve

# Many times what llguidance allows: bounded texts with exceptions need it once, when they are
# compiled and at their first token.
LIMITS = LLParserLimits(initial_lexer_fuel=20_000_000, step_lexer_fuel=2_000_000)
_STACK_BYTES = 2 << 20
MEMORY_BYTES = 4 << 30
_BYTES = 256


class _Bytes:
    """A vocabulary of single bytes, with the model's control tokens in their places."""

    bos_token_id = None

    def __init__(self, size: int, special: dict[int, str], eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self.special_token_ids = list(special)
        self.tokens = [special.get(i, "").encode() for i in range(max(size, 0))]
        free = (i for i in range(size + _BYTES + len(special)) if i not in special)
        for byte, place in zip(range(_BYTES), free, strict=False):
            self.tokens.extend([b""] * (place + 1 - len(self.tokens)))
            self.tokens[place] = bytes([byte])

    def __call__(self, text: str) -> list[int]:
        return [self.tokens.index(bytes([byte])) for byte in text.encode()]


def _handler(first: bytes) -> Handler:
    known = json.loads(first)
    special = {int(token_id): text for token_id, text in known["special"].items()}
    eos_ids = known["eos"]
    made = _Bytes(known["size"], special, eos_ids[0] if eos_ids else 0)
    tokens = LLTokenizer(TokenizerWrapper(made), n_vocab=len(made.tokens), eos_token=eos_ids)

    def answer(grammar: bytes) -> bytes:
        matcher = LLMatcher(tokens, grammar.decode(), limits=LIMITS)
        if not matcher.is_error():
            matcher.deep_copy().compute_bitmask()
        return b""  # what overflows when the matcher is freed does so here

    answer(json.dumps({"grammars": [{"lark_grammar": 'start: "a"'}]}).encode())
    return answer


def main() -> None:
    serve(_handler, MEMORY_BYTES, _STACK_BYTES)
