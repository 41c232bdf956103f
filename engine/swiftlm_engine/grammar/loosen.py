"""Loosen: a schema that cannot be enforced as it is, made one that can, keyword by keyword.

Generated schemas (of zod, pydantic, TypeScript) hold keywords that no grammar knows. Where nobody
asked for strictness the rest of the schema is still worth having; what was given up is named.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from swiftlm_engine.grammar.endless import DATA, Ends, references
from swiftlm_engine.grammar.lark import Schema
from swiftlm_engine.grammar.regex_scan import structural
from swiftlm_engine.text.tools.schema import pointer_key

MAX_STEPS = 24
MAX_S = 3.0  # no further step is begun after it
SIZE = "Make it smaller"  # a refusal that no keyword is to blame for
MAX_SHOWN = 60  # characters of a pattern in a message
MAX_NAMED = 8  # places in one message
# What grammars do not know, each given up for itself, the dearest last.
KEYWORDS = (
    "uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems",
    "unevaluatedProperties", "dependentRequired", "dependentSchemas", "dependencies", "if", "then",
    "else", "not", "propertyNames", "patternProperties", "minProperties", "maxProperties",
    "contentSchema", "$dynamicRef", "$recursiveRef", "multipleOf", "format", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum",
)  # fmt: skip
NAMED = re.compile(r"Unimplemented keys: \[([^\]]*)\]|'(\w+)' (?:cannot be held|with)")
LOOKAROUND = re.compile(r"\(\?(?:[=!]|<[=!])")


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Something of a schema that is not enforced."""

    path: str  # of the schema that holds it; dotted
    keyword: str
    value: object

    def __str__(self) -> str:
        where = f"{self.path}.{self.keyword}" if self.path else self.keyword
        if not isinstance(self.value, str):
            return where
        shown = self.value if len(self.value) <= MAX_SHOWN else self.value[: MAX_SHOWN - 1] + "…"
        return f"{where} ({shown})"


@dataclass(frozen=True, slots=True)
class Loosened:
    schema: Schema
    given_up: tuple[GivenUp, ...]

    @property
    def places(self) -> str:
        named = ", ".join(map(str, self.given_up[:MAX_NAMED]))
        more = len(self.given_up) - MAX_NAMED
        return f"{named} and {more} more" if more > 0 else named


def loosened(schema: Schema, refusal: Callable[[Schema], str | None]) -> Loosened | None:
    """The most of the schema that is not refused; None where nothing of it is left.

    `refusal` says why a schema cannot be enforced, or None where it can.
    """
    given_up: list[GivenUp] = []
    deadline = time.monotonic() + MAX_S
    reason = refusal(schema)
    for _ in range(MAX_STEPS):
        if reason is None:
            return Loosened(schema, tuple(given_up))
        if SIZE in reason or time.monotonic() > deadline:
            return None
        step = next(_steps(schema, reason), None)
        if step is None:
            return None
        schema, lost = step
        given_up += lost
        reason = refusal(schema)
    return None


def circle(schema: Schema) -> str | None:
    """A reference that leads to nothing but itself, so that no value follows it; None if none does.

    One that leads back through properties or items is fine: such values nest.
    """
    for ref in references(schema):
        seen: list[str] = []
        at: object = ref
        while isinstance(at, str) and at not in seen:
            seen.append(at)
            target = _target(schema, at)
            at = target.get("$ref") if isinstance(target, Mapping) else None
        if isinstance(at, str):
            return at
    return None


def _target(schema: Schema, ref: str) -> object:
    if not ref.startswith("#"):
        return None
    node: object = schema
    for part in ref[1:].split("/")[1:]:
        key = pointer_key(part)
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


Step = tuple[Schema, list[GivenUp]]


def _steps(schema: Schema, reason: str) -> Iterator[Step]:
    """Weaker schemas, the one that the reason asks for first."""
    for names in NAMED.findall(reason):
        wanted = [name.strip(' "') for name in names[0].split(",")] if names[0] else [names[1]]
        if "oneOf" in wanted:
            yield from _changed(schema, _any_instead_of_one)
        yield from _changed(schema, _without(wanted))
    yield from _changed(schema, _with_an_end(schema))
    yield from _changed(schema, _pattern_without_lookaround)
    yield from _changed(schema, _any_instead_of_one)
    yield from _changed(schema, _without_foreign_reference)
    for keyword in KEYWORDS:
        yield from _changed(schema, _without([keyword]))
    yield from _changed(schema, _without(["pattern"]))


Change = Callable[[Mapping[str, object], str], tuple[dict[str, object], list[GivenUp]]]


def _changed(schema: Schema, change: Change) -> Iterator[Step]:
    lost: list[GivenUp] = []
    changed = _walk(schema, "", change, lost)
    if lost and isinstance(changed, Mapping):
        yield changed, lost


def _walk(node: object, path: str, change: Change, lost: list[GivenUp]) -> object:
    if isinstance(node, list):
        return [_walk(one, f"{path}[{at}]", change, lost) for at, one in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    kept, gone = change(node, path)
    lost += gone
    return {
        key: _members(value, _joined(path, key), change, lost)
        if key in ("properties", "$defs", "definitions", "patternProperties")
        else value
        if key in DATA
        else _walk(value, _joined(path, key), change, lost)
        for key, value in kept.items()
    }


def _members(node: object, path: str, change: Change, lost: list[GivenUp]) -> object:
    """Schemas by name: the names are no keywords."""
    if not isinstance(node, Mapping):
        return node
    return {key: _walk(value, _joined(path, key), change, lost) for key, value in node.items()}


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _without(keywords: Sequence[str]) -> Change:
    def change(node: Mapping[str, object], path: str) -> tuple[dict[str, object], list[GivenUp]]:
        gone = [GivenUp(path, key, node[key]) for key in keywords if key in node]
        return {k: v for k, v in node.items() if k not in keywords}, gone

    return change


def _any_instead_of_one(
    node: Mapping[str, object], path: str
) -> tuple[dict[str, object], list[GivenUp]]:
    if not isinstance(node.get("oneOf"), list) or "anyOf" in node:
        return dict(node), []
    kept = {("anyOf" if key == "oneOf" else key): value for key, value in node.items()}
    return kept, [GivenUp(path, "oneOf", None)]


def _pattern_without_lookaround(
    node: Mapping[str, object], path: str
) -> tuple[dict[str, object], list[GivenUp]]:
    pattern = node.get("pattern")
    if not isinstance(pattern, str) or not LOOKAROUND.search(pattern):
        return dict(node), []
    return {**node, "pattern": without_lookaround(pattern)}, [GivenUp(path, "pattern", pattern)]


def _with_an_end(schema: Schema) -> Change:
    """Members and items need not be there where each would hold another one, without end."""
    ends = Ends(schema)

    def change(node: Mapping[str, object], path: str) -> tuple[dict[str, object], list[GivenUp]]:
        kept, lost = dict(node), []
        if ends.endless and (names := ends.members(node)):
            required = node["required"]
            assert isinstance(required, list), "of whose names some are endless"
            kept["required"] = [name for name in required if name not in names]
            lost.append(GivenUp(path, "required", ", ".join(names)))
        if ends.endless and ends.items(node):
            del kept["minItems"]
            lost.append(GivenUp(path, "minItems", node["minItems"]))
        return kept, lost

    return change


def _without_foreign_reference(
    node: Mapping[str, object], path: str
) -> tuple[dict[str, object], list[GivenUp]]:
    ref = node.get("$ref")
    if not isinstance(ref, str) or ref.startswith("#"):
        return dict(node), []
    return {k: v for k, v in node.items() if k != "$ref"}, [GivenUp(path, "$ref", ref)]


def without_lookaround(pattern: str) -> str:
    """Without lookaheads and lookbehinds: it still matches all that the pattern matched."""
    kept, at = "", 0
    while match := LOOKAROUND.search(pattern, at):
        kept += pattern[at : match.start()]
        at = _group_end(pattern, match.start())
    return kept + pattern[at:]


def _group_end(pattern: str, at: int) -> int:
    depth = 0
    for place, char in structural(pattern, at):
        if char in "()":
            depth += 1 if char == "(" else -1
            if not depth:
                return place + 1
    return len(pattern)
