"""Compiles grammars in a process of its own, whose death costs one request.

A chain of a thousand definitions overflows the stack of the native compiler, which no exception
can tell of. So every grammar is compiled here first, with less stack than the engine has and
within a time and a size of memory. Run as a script, which needs no
other file of ours: the vocabulary's frame comes first on the
standard input, then a frame for each grammar, which is answered by one byte.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import threading
from typing import BinaryIO

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

# Many times what llguidance allows: bounded texts with exceptions need it once, when they are
# compiled and at their first token.
LIMITS = LLParserLimits(initial_lexer_fuel=20_000_000, step_lexer_fuel=2_000_000)
LENGTH_BYTES = 8
DEADLINE_S = 5
DONE = b"\1"
_STACK_BYTES = 2 << 20
_MEMORY_BYTES = 4 << 30
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


def frame(content: bytes) -> bytes:
    return len(content).to_bytes(LENGTH_BYTES, "little") + content


def _read(source: BinaryIO) -> bytes | None:
    head = source.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    return source.read(int.from_bytes(head, "little"))


def _serve() -> None:
    vocabulary = _read(sys.stdin.buffer)
    if vocabulary is None:
        return
    known = json.loads(vocabulary)
    special = {int(token_id): text for token_id, text in known["special"].items()}
    eos_ids = known["eos"]
    made = _Bytes(known["size"], special, eos_ids[0] if eos_ids else 0)
    tokens = LLTokenizer(TokenizerWrapper(made), n_vocab=len(made.tokens), eos_token=eos_ids)
    while (grammar := _read(sys.stdin.buffer)) is not None:
        signal.alarm(2 * DEADLINE_S)  # also where nobody is left who would end a hang
        matcher = LLMatcher(tokens, grammar.decode(), limits=LIMITS)
        if not matcher.is_error():
            matcher.deep_copy().compute_bitmask()
        del matcher  # what overflows when it is freed shall do so here
        signal.alarm(0)
        sys.stdout.buffer.write(DONE)
        sys.stdout.buffer.flush()


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # macOS may not limit it
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    os.nice(5)
    threading.stack_size(_STACK_BYTES)
    worker = threading.Thread(target=_serve)
    worker.start()
    worker.join()


if __name__ == "__main__":
    main()
