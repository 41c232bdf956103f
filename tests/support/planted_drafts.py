"""A drafter that knows the answer and errs at places that a test chooses."""

from __future__ import annotations

import random

from engine_harness import EngineHarness

from swiftlm_engine.speculation.speculator import Speculator


class PlantedDrafter:
    """Of one sequence: the true tokens up to a random place, and then a wrong one."""

    def __init__(self, prompt: list[int], answer: list[int], seed: int = 0) -> None:
        self._told: list[int] = []
        self._prompt, self._answer = prompt, answer
        self._random = random.Random(seed)

    def extend(self, ids: list[int]) -> None:
        self._told += ids

    def propose(self, max_tokens: int) -> list[int]:
        known = [*self._prompt, *self._answer]
        if self._told != known[: len(self._told)]:
            return []  # another request
        draft = known[len(self._told) :][:max_tokens]
        wrong = self._random.randrange(2 * max_tokens)
        return [(token + 7) % 300 if at == wrong else token for at, token in enumerate(draft)]


class AlwaysDrafting(Speculator):
    """Whether it pays or not."""

    worth_trying = True


def plant(engine: EngineHarness, prompt: list[int], answer: list[int], most: int = 5) -> None:
    """From the next step on the engine drafts `answer` behind `prompt`, not always rightly."""
    speculator = AlwaysDrafting(lambda: PlantedDrafter(prompt, answer), most)
    runner = engine.session.runner
    runner._speculator = runner.batch._speculator = speculator
