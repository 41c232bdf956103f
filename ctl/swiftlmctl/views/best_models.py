"""`models best`: one row for each purpose, as the daemon has marked the catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swiftlm_proto import messages as m
from swiftlmctl import output
from swiftlmctl.views.model_table import fit_words, speed_words

_PURPOSES = ("largest", "fastest", "agents")


@dataclass(frozen=True, slots=True)
class Pick:
    best: str
    model: m.OfferedModel


def picks(found: Sequence[m.OfferedModel]) -> list[Pick]:
    return [Pick(best, model) for best in _PURPOSES for model in found if best in model.best_for]


def table(found: Sequence[Pick]) -> output.Table:
    rows = []
    for pick in found:
        fit = pick.model.fit
        size = output.size_text(pick.model.size_bytes)
        here = "yes" if pick.model.here else "no"
        rows.append((pick.best, pick.model.model, size, fit_words(fit), speed_words(fit), here))
    return output.Table(("best", "model", "size", "fit", "tok/s", "here"), tuple(rows))
