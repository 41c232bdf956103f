"""Trial: whether a grammar can be compiled without harm, asked of a process that may die of it."""

import json
from collections.abc import Mapping, Sequence

from swiftlm_engine.grammar import trial_compiler
from swiftlm_engine.isolation.child import ChildFailed, ChildTooSlow
from swiftlm_engine.isolation.children import Children

MAX_BYTES = 4 << 20  # of one grammar with its schemas
DEADLINE_S = 5.0


class TrialFailed(ValueError):
    """The grammar would have ended or stopped the engine."""


class Trial:
    """One model's. Its processes start with the first grammar, and again after they have died."""

    def __init__(self, size: int, special: Mapping[int, str], eos_ids: Sequence[int]) -> None:
        known = {"size": size, "special": dict(special), "eos": list(eos_ids)}
        vocabulary = json.dumps(known).encode()
        self.children = Children(trial_compiler.__name__, lambda: vocabulary)

    def check(self, grammar: str) -> None:
        """Raises TrialFailed and Cancelled; OSError where no process can be started."""
        content = grammar.encode()
        if len(content) > MAX_BYTES:
            raise TrialFailed(
                f"the grammar or schema has {len(content):,} bytes; "
                f"at most {MAX_BYTES:,} can be enforced. Make it smaller"
            )
        try:
            self.children.ask(content, DEADLINE_S, trial_compiler.MEMORY_BYTES)
        except ChildTooSlow:
            what = f"takes longer than {DEADLINE_S:g} s to compile"
        except ChildFailed:
            what = "is nested too deep or is too large to compile"
        else:
            return
        raise TrialFailed(f"the grammar or schema {what}. Make it smaller")
