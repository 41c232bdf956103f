"""Tokenises long texts in a process of its own, which ends when the client leaves."""

from __future__ import annotations

import os
import struct
from array import array

from swiftlm_engine.isolation.serve import Handler, serve

MEMORY_BYTES = 16 << 30
HEAD = struct.Struct("<?Q")  # whether special tokens are added, and how many tokens are of use
COUNT = struct.Struct("<Q")
ITEM = "I"


def _handler(first: bytes) -> Handler:
    from tokenizers import Tokenizer  # after the environment that it reads is set

    tokenizer = Tokenizer.from_str(first.decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def answer(asked: bytes) -> bytes:
        special, limit = HEAD.unpack_from(asked)
        text = asked[HEAD.size :].decode("utf-8", "replace")
        encoding = tokenizer.encode(text, add_special_tokens=special)
        count = len(encoding)
        if count > limit:
            return COUNT.pack(count)
        ids, ends = encoding.ids, [end for _, end in encoding.offsets]
        return COUNT.pack(count) + array(ITEM, ids).tobytes() + array(ITEM, ends).tobytes()

    return answer


def main() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    serve(_handler, MEMORY_BYTES)
