"""A short list of models worth having, as data. Sizes are computed from parameters and bits until
an outline of the repository (`refresh`) gives the exact ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

_BETWEEN = re.compile(r"[\s:_]+")
_ENDINGS = re.compile(r"-(4bit|mxfp4-q8)$")
_MIDDLES = re.compile(r"-(instruct|it)(-\d{4})?$")


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    repo: str  # what `swiftlmctl pull` takes
    title: str
    family: str
    parameters_b: float
    active_b: float  # per token, 0 = all of them
    bits_per_weight: float  # scales included, over the whole checkpoint
    context: int
    licence: str
    tools: bool
    reasoning: bool
    vision: bool

    @property
    def short_names(self) -> frozenset[str]:
        """Its title and its repository's name, with and without what all of them end in."""
        own = _spelled(self.repo.rpartition("/")[2])
        bare = _ENDINGS.sub("", own)
        return frozenset({_spelled(self.title), own, bare, _MIDDLES.sub("", bare)})

    @property
    def size_bytes(self) -> int:
        return int(self.parameters_b * 1e9 * self.bits_per_weight / 8)


@cache
def entries() -> tuple[CatalogueEntry, ...]:
    text = resources.files("swiftlmd.store").joinpath("catalogue.json").read_text("utf-8")
    return tuple(CatalogueEntry(**fields) for fields in json.loads(text)["entries"])


def entry(repo: str) -> CatalogueEntry | None:
    """The hub's names do not differ by case alone."""
    wanted = repo.casefold()
    return next((found for found in entries() if found.repo.casefold() == wanted), None)


def repo_of(name: str) -> str:
    """The repository that a short name means (`qwen3-8b`, `qwen3:8b`); empty where none is."""
    wanted = _spelled(name)
    found = (x.repo for x in entries() if "/" in x.repo and wanted in x.short_names)
    return next(found, "")


def _spelled(name: str) -> str:
    return _BETWEEN.sub("-", name.strip().casefold())


def table(listed: Iterable[CatalogueEntry]) -> str:
    """The table of docs/models.md; `python -m swiftlmd.store.catalogue` prints it."""
    head = "| pull | model | about | context | tools | thinks | sees | licence |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    lines += [_row(entry) for entry in listed]
    return "\n".join(lines)


def _row(entry: CatalogueEntry) -> str:
    active = f", {entry.active_b:g}B active" if entry.active_b else ""
    size = f"{entry.size_bytes / 1e9:.1f} GB{active}"
    marks = ["yes" if m else "" for m in (entry.tools, entry.reasoning, entry.vision)]
    cells = [f"`{entry.repo}`", entry.title, size, f"{entry.context:,}", *marks, entry.licence]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(table(entries()))
