"""Prompt lookup: what followed the last few tokens when they stood here before.

Costs no model. Pays where answers repeat their prompt: code edits, summaries, tool results.
"""

from __future__ import annotations

SIZES = (4, 3, 2)  # longest first: a longer match is a better guess


class NgramDrafter:
    """Of one sequence. `extend` with every token in order, `propose` a continuation."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._ends: list[dict[tuple[int, ...], int]] = [{} for _ in SIZES]

    def extend(self, ids: list[int]) -> None:
        for token_id in ids:
            self._ids.append(token_id)
            # The gram that ends right here must not be found as its own earlier place, so the one
            # before it is entered now.
            end = len(self._ids) - 1
            for size, ends in zip(SIZES, self._ends, strict=True):
                if end >= size:
                    ends[tuple(self._ids[end - size : end])] = end

    def propose(self, max_tokens: int) -> list[int]:
        """At most `max_tokens` ids that may come next; empty when nothing was seen before."""
        for size, ends in zip(SIZES, self._ends, strict=True):
            at = ends.get(tuple(self._ids[-size:])) if len(self._ids) >= size else None
            if at is not None:
                return self._ids[at : at + max_tokens]
        return []
