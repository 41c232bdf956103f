"""200 pairs of a query and a document, and the tiny reranker that judges them."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tiny_models import CHATML, make_model

# As Qwen3-Reranker's: no thoughts, closed before the answer.
TEMPLATE = CHATML.replace(
    "<|im_start|>assistant\n",
    "<|im_start|>assistant\n{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}",
)
WORDS = [
    "cat",
    "dog",
    "train",
    "Oslo",
    "rain",
    "purrs",
    "barks",
    "leaves",
    "nine",
    "falls",
    "river",
    "bread",
    "song",
    "light",
]
# Tokens of the byte-level vocabulary that stand for "yes" and "no".
YES, NO = 120, 130
NUM_QUERIES, NUM_DOCUMENTS = 10, 20
RECORDED = Path(__file__).with_name("reranked_pairs.json")


def make_reranker(folder: Path) -> Path:
    return make_model("qwen3", folder, template=TEMPLATE, max_position_embeddings=2048, seed=5)


def queries() -> list[tuple[str, list[str]]]:
    chance = random.Random(7)

    def text(words: int) -> str:
        return " ".join(chance.choices(WORDS, k=words))

    return [
        (text(4), [text(chance.randint(1, 40)) for _ in range(NUM_DOCUMENTS)])
        for _ in range(NUM_QUERIES)
    ]


def recorded_scores() -> list[list[float]]:
    """What transformers and torch gave for them, from the last logits of the documented prompt."""
    scores: list[list[float]] = json.loads(RECORDED.read_text())["scores"]
    return scores
