"""Does a model still find a number told to it long ago when its KV is compressed?

    python bench/kv_passkey.py [MODEL] [--tokens N ...] [--formats F ...] [--keys N]

A prompt of filler sentences hides a five-digit key, each at another depth, and asks for it. Found:
the most likely tokens after the question spell the key. Prefilled in chunks of 512, as the engine
does on a CPU. Prints found/asked per length and format, and which keys the first format alone, or
the other alone, found; exact KV says what the model can do at all.
"""

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "engine"))

import mlx.core as mx
import mlx.nn as nn
from kv_quality import caches_of
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache
from models import smollm2_dense

from swiftlm_engine import turboquant
from swiftlm_engine.turboquant.formats import FORMATS

CHUNK = 512
FILLER = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
)
TASK = (
    "There is important information hidden inside a lot of irrelevant text. Find and remember it. "
)
QUESTION = "\nWhat is the pass key? The pass key is"


@dataclass(frozen=True, slots=True)
class Pieces:
    """A prompt in tokens, before it is put together."""

    task: list[int]
    filler: list[int]
    question: list[int]
    needles: list[list[int]]  # one per key
    answers: list[list[int]]

    def prompt(self, tokens: int, which: int, depth: float) -> list[int]:
        needle = self.needles[which]
        room = tokens - len(self.task) - len(needle) - len(self.question)
        filler = (self.filler * (room // len(self.filler) + 1))[:room]
        at = int(room * depth)
        return self.task + filler[:at] + needle + filler[at:] + self.question


def pieces(encode: Callable[[str], list[int]], start: list[int], count: int) -> Pieces:
    """`encode` adds no special tokens; `start` are those that open a text."""
    keys = random.Random(5413).sample(range(10000, 100000), count)
    return Pieces(
        [*start, *encode(TASK)],
        encode(FILLER),
        encode(QUESTION),
        [encode(f"The pass key is {key}. Remember it. {key} is the pass key. ") for key in keys],
        [encode(f" {key}") for key in keys],
    )


def main() -> int:
    options = parse_arguments()
    model, tokenizer = load(str(options.model or smollm2_dense()))
    turboquant.install(model)
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    parts = pieces(encode, tokenizer.encode(""), options.keys)
    for tokens in options.tokens:
        report(model, parts, tokens, options.formats)
    return 0


def report(model: nn.Module, parts: Pieces, tokens: int, formats: list[str]) -> None:
    first: set[int] | None = None
    for format in formats:
        found = keys_found(model, parts, tokens, format)
        first = found if first is None else first
        lost, gained = sorted(first - found), sorted(found - first)
        line = f"{tokens:6d} {format:9s} {len(found)} of {len(parts.answers)}"
        print(f"{line}  lost {lost} gained {gained}", flush=True)


def keys_found(model: nn.Module, parts: Pieces, tokens: int, format: str) -> set[int]:
    found = set()
    for which, answer in enumerate(parts.answers):
        caches = make_prompt_cache(model) if format == "fp16" else caches_of(model, format)
        prompt = parts.prompt(tokens, which, (which + 0.5) / len(parts.answers))
        if answers(model, prompt, answer, caches):
            found.add(which)
    return found


def answers(model: nn.Module, prompt: list[int], answer: list[int], caches: list[Any]) -> bool:
    """Whether greedy decoding after `prompt` begins with `answer`."""
    for start in range(0, len(prompt) - 1, CHUNK):
        chunk = prompt[start : min(start + CHUNK, len(prompt) - 1)]
        model(mx.array([chunk]), cache=caches)
        mx.eval([c.state for c in caches])
    token = prompt[-1]
    for wanted in answer:
        token = mx.argmax(model(mx.array([[token]]), cache=caches)[0, -1]).item()
        if token != wanted:
            return False
    return True


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", help="default: SmolLM2 from PyPI")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--formats", nargs="+", default=["fp16", *FORMATS])
    parser.add_argument("--keys", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
