"""A drafter that knows the answer and errs at places that a test chooses."""

from __future__ import annotations

import random

from engine_harness import EngineHarness

from swiftlm_engine.speculation.speculator import Speculator

Text = tuple[list[int], list[int]]  # a prompt and its answer


class PlantedDrafter:
    """Of one sequence: the true tokens up to a random place, and then a wrong one."""

    def __init__(self, texts: list[Text], seed: int = 0) -> None:
        self._told: list[int] = []
        self._known = [[*prompt, *answer] for prompt, answer in texts]
        self._random = random.Random(seed)

    def extend(self, ids: list[int]) -> None:
        self._told += ids

    def propose(self, max_tokens: int) -> list[int]:
        so_far = len(self._told)
        known = next((one for one in self._known if one[:so_far] == self._told), [])
        draft = known[so_far : so_far + max_tokens]
        wrong = self._random.randrange(2 * max_tokens)
        return [(token + 7) % 300 if at == wrong else token for at, token in enumerate(draft)]


class AlwaysDrafting(Speculator):
    """Whether it pays or not."""

    worth_trying = True


def plant(engine: EngineHarness, texts: list[Text], most: int = 5) -> None:
    """From the next step on the engine drafts these answers, not always rightly."""
    speculator = AlwaysDrafting(lambda: PlantedDrafter(texts), most, one_sequence=False)
    runner = engine.session.runner
    runner._speculator = runner.batch._speculator = speculator
