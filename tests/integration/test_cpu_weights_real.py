"""SmolLM2 as float32 says what its quantized weights say; what differs is rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from swiftlm_engine.expansion.options import ExpandOptions
from swiftlm_engine.load.device import Device
from swiftlm_engine.load.weights import load_weights

PROMPTS = (
    "The capital of France is",
    "Write a short letter to a friend about the weather in the mountains.",
    "def fibonacci(n):\n",
    "Once upon a time there was a small robot that",
    "The three states of matter are",
    "Q: How many legs does a spider have?\nA:",
    "A recipe for tomato soup for four people:\n1.",
    "import json\n\ndef read(path):\n    ",
    "The history of the Roman Empire begins with",
    "Dear Sir or Madam,\n\nI am writing to",
    "Water boils at a temperature of",
    "Three tips for learning a language:\n-",
    "SELECT name, age FROM users WHERE",
    "The quick brown fox jumps over the lazy dog and",
    "In mathematics, a prime number is",
    "My favourite book is about a detective who",
    "To install the program, first open a terminal and",
    "The sun is a star at the centre of",
    "Q: What is 12 times 12?\nA:",
    "Once the rain had stopped, the children",
    "An apple a day keeps",
    "class Stack:\n    def __init__(self):\n",
    "Photosynthesis is the process by which",
    "The most important rule of writing is",
    "List five animals that live in the sea:\n1.",
    "She opened the old wooden door and saw",
    "The difference between weather and climate is",
    "for i in range(10):\n    print(",
    "Breakfast is often called the most important",
    "In 1969, two astronauts",
    "The train to the city leaves every",
    "A good password should be",
    "<h1>Welcome</h1>\n<p>",
    "Electricity flows through a wire when",
    "The old man looked at the sea and said:",
    "How to make a paper plane:\n",
    "Music is to the ear what",
    "The longest river in South America is",
    "When you are tired, the best thing to do is",
    "git commit -m",
)
WHOLE = ExpandOptions(head=True, attention_layers=99, mlp_layers=99)
ROUNDING = 0.01  # nats between two tokens that float32 sums in another order may swap

pytestmark = pytest.mark.usefixtures("on_the_cpu")


def written(model: Any, ids: list[int], tokens: int) -> list[int]:
    cache = make_prompt_cache(model)
    logits = model(mx.array([ids]), cache=cache)
    found: list[int] = []
    while len(found) < tokens:
        found.append(int(mx.argmax(logits[0, -1]).item()))
        logits = model(mx.array([found[-1:]]), cache=cache)
    return found


def differences(model: Any, ids: list[int], text: list[int]) -> list[tuple[int, float]]:
    """Where `model` would have gone on otherwise, and by how many nats it preferred that."""
    logits = model(mx.array([ids + text[:-1]]), cache=make_prompt_cache(model))[0, len(ids) - 1 :]
    chosen = mx.take_along_axis(logits, mx.array(text)[:, None], axis=-1)[:, 0]
    gaps = (mx.max(logits, axis=-1) - chosen).tolist()
    return [(place, gap) for place, gap in enumerate(gaps) if gap > 0]


def compare(folder: Path, prompts: tuple[str, ...], tokens: int) -> list[str]:
    """Each difference in words. A row of quantized products does not depend on others, so that one
    pass over the text asks the packed weights for each of its tokens."""
    packed = load_weights(folder, "", Device.CPU, lambda *_: None)
    floats = load_weights(folder, "", Device.CPU, lambda *_: None, expand=WHOLE)
    found = []
    for prompt in prompts:
        ids = packed.tokenizer.encode(prompt)
        text = written(floats.model, ids, tokens)
        for place, gap in differences(packed.model, ids, text):
            found.append(f"{prompt!r}, token {place}: {gap:.2g} nats")
            assert gap < ROUNDING, found[-1]
    return found


def test_a_few_tokens_are_those_of_the_packed_weights(smollm2: Path) -> None:
    assert compare(smollm2, PROMPTS[:1], 6) == []


@pytest.mark.slow
def test_forty_texts_differ_by_rounding_at_most(smollm2: Path) -> None:
    found = compare(smollm2, PROMPTS, 96)
    print("\n".join([f"{len(found)} of {40 * 96} tokens differ", *found]))
    assert len(found) <= 4
