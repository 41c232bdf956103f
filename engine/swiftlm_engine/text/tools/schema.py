"""Schema: a JSON schema taken apart into alternatives of one JSON type each.

The grammars of calls and their readers must agree on what a value may be, or a text that the one
allows is misread by the other. So both ask here. References, unions and conjunctions are resolved;
a keyword that no grammar here can hold is refused by name instead of left out.
"""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

Schema = Mapping[str, object]
Rules = tuple[Schema, ...]  # schemas without references and unions that hold at once
KINDS = ("null", "boolean", "integer", "number", "string", "array", "object")
KIND_OF = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}
KIND_OF |= {dict: "object", type(None): "null"}
APPLICATORS = ("$ref", "anyOf", "oneOf", "allOf")
MAX_DEPTH = 32
MAX_ALTERNATIVES = 256
MAX_DISJOINT = 48
ANY: Schema = {}

_NUMERIC = "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf"
KEYWORDS = {  # what says something of the values of one type
    "null": "",
    "boolean": "",
    "integer": _NUMERIC,
    "number": _NUMERIC,
    "string": "minLength maxLength pattern format",
    "array": "items prefixItems additionalItems minItems maxItems uniqueItems contains"
    " unevaluatedItems",
    "object": "properties required additionalProperties patternProperties minProperties"
    " maxProperties propertyNames dependentRequired dependentSchemas dependencies",
}
OF_KIND = {kind: frozenset(names.split()) for kind, names in KEYWORDS.items()}
OF_ANY = frozenset(("not", "if", "$dynamicRef", "$recursiveRef"))
REFUSED = OF_ANY | {"contains", "unevaluatedItems", "dependentRequired", "dependentSchemas"}
REFUSED |= {"dependencies"}


class CannotHold(ValueError):
    """The schema says something that no grammar of calls can hold; names the keyword."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Values of one JSON type. With `values`, only these; else all that the rules allow."""

    kind: str
    rules: Rules
    values: tuple[object, ...] | None = None

    @property
    def is_free(self) -> bool:
        """Every value of the kind will do."""
        said = {name for rule in self.rules for name in rule}
        return self.values is None and not said & (OF_KIND[self.kind] | OF_ANY)

    def keyword(self, name: str) -> list[object]:
        """What each rule that has the keyword says."""
        return [rule[name] for rule in self.rules if name in rule]

    def check(self) -> None:
        """Raises CannotHold when a rule says what no grammar here knows."""
        said = {name for rule in self.rules for name in rule}
        unknown = said & REFUSED & (OF_KIND[self.kind] | OF_ANY)
        if unknown and self.values is None:
            raise CannotHold(f"'{min(unknown)}' cannot be held here")


@dataclass(frozen=True, slots=True)
class Shape:
    """An object's members. `extra` is what any other member must be; None when there is none."""

    properties: Mapping[str, Schema]
    required: frozenset[str]
    extra: Schema | None


def alternatives(schema: object, root: Schema) -> list[Alternative]:
    """What a value may be, one JSON type each. Raises CannotHold."""
    found: list[Alternative] = []
    for rules in _expanded(schema, root, 0):
        found += _of_rules(rules)
    return found


def kinds(schema: object, root: Schema) -> frozenset[str] | None:
    """The JSON types a value may have; None when the schema does not say. It never raises."""
    try:
        found = frozenset(one.kind for one in alternatives(schema, root))
    except CannotHold:
        return None
    return None if not found or found >= set(KINDS) - {"integer"} else found


def words(schema: object, root: Schema) -> frozenset[str]:
    """The strings that the schema lists. It never raises."""
    try:
        listed = [one.values for one in alternatives(schema, root) if one.kind == "string"]
    except CannotHold:
        return frozenset()
    return frozenset(v for values in listed for v in values or () if isinstance(v, str))


def shape(alternative: Alternative) -> Shape:
    """The members of an object. Raises CannotHold."""
    alternative.check()
    properties: dict[str, list[object]] = {}
    for found in alternative.keyword("properties"):
        for key, schema in (found if isinstance(found, Mapping) else {}).items():
            properties.setdefault(key, []).append(schema)
    listed = [r for r in alternative.keyword("required") if isinstance(r, list)]
    required = frozenset(str(key) for names in listed for key in names)
    extra = all_of(alternative.keyword("additionalProperties"))
    for key in sorted(required - properties.keys()):
        if extra is None:
            raise CannotHold(f"'required' names '{key}', which 'additionalProperties' forbids")
        properties[key] = [extra]
    for found in alternative.keyword("patternProperties"):
        for pattern, schema in (found if isinstance(found, Mapping) else {}).items():
            for key in properties:
                if re.search(pattern, key):
                    properties[key].append(schema)
    merged = {key: all_of(schemas) for key, schemas in properties.items()}
    known = {key: schema for key, schema in merged.items() if schema is not None}
    if missing := required - known.keys():
        raise CannotHold(f"'required' names '{min(missing)}', which nothing satisfies")
    _check_counts(alternative, known, required)
    return Shape(known, required, extra)


def all_of(schemas: Sequence[object]) -> Schema | None:
    """One schema that says what all of these say; None where one of them allows nothing."""
    if any(schema is False for schema in schemas):
        return None
    said = [schema for schema in schemas if isinstance(schema, Mapping) and schema]
    return (said[0] if len(said) == 1 else {"allOf": said}) if said else ANY


def _check_counts(
    alternative: Alternative, known: Mapping[str, Schema], required: frozenset[str]
) -> None:
    for low in alternative.keyword("minProperties"):
        if isinstance(low, int) and low > len(required):
            raise CannotHold("'minProperties' cannot be held here")
    for high in alternative.keyword("maxProperties"):
        if isinstance(high, int) and high < len(known):
            raise CannotHold("'maxProperties' cannot be held here")
    for names in alternative.keyword("propertyNames"):
        if not all(holds(key, names) for key in known):
            raise CannotHold("'propertyNames' cannot be held here")


# -- references, unions and conjunctions


def _expanded(schema: object, root: Schema, depth: int) -> list[Rules]:
    """Each way to satisfy the schema, as rules that hold at once."""
    if schema is True:
        return [()]
    if not isinstance(schema, Mapping):
        return []
    if depth > MAX_DEPTH:
        raise CannotHold("the schema refers to itself without end")
    plain = {k: v for k, v in schema.items() if k not in APPLICATORS}
    ways: list[Rules] = [(plain,)] if plain else [()]
    if "$ref" in schema:
        ways = _both(ways, _expanded(resolved(schema["$ref"], root), root, depth + 1))
    for part in _parts(schema, "allOf"):
        ways = _both(ways, _expanded(part, root, depth + 1))
    for name in ("anyOf", "oneOf"):
        if name in schema:
            split = [_expanded(part, root, depth + 1) for part in _parts(schema, name)]
            if name == "oneOf":
                _check_disjoint(split)
            ways = _both(ways, [way for part in split for way in part])
    return ways


def _both(some: list[Rules], others: list[Rules]) -> list[Rules]:
    if len(some) * len(others) > MAX_ALTERNATIVES:
        raise CannotHold("the schema has too many alternatives")
    return [one + other for one, other in itertools.product(some, others)]


def _parts(schema: Schema, name: str) -> Sequence[object]:
    parts = schema.get(name)
    return parts if isinstance(parts, list) else ()


def pointer_key(step: str) -> str:
    """A step of a JSON pointer in a URI as the key it stands for: `List%3Cstring%3E`, `a~1b`."""
    return unquote(step).replace("~1", "/").replace("~0", "~")


def resolved(ref: object, root: Schema) -> object:
    """Raises CannotHold for a reference to nothing."""
    place: object = root
    pointer = str(ref)
    if not pointer.startswith("#"):
        raise CannotHold(f"the reference '{pointer}' leads out of the schema")
    for step in filter(None, pointer[1:].split("/")):
        step = pointer_key(step)
        if isinstance(place, Mapping) and step in place:
            place = place[step]
        elif isinstance(place, list) and step.isdigit() and int(step) < len(place):
            place = place[int(step)]
        else:
            raise CannotHold(f"the reference '{pointer}' leads nowhere")
    return place


def _check_disjoint(split: list[list[Rules]]) -> None:
    each = [[a for way in part for a in _of_rules(way)] for part in split]
    if sum(map(len, each)) > MAX_DISJOINT:  # each is compared with each
        raise CannotHold("'oneOf' with so many alternatives cannot be held here")
    for ours, theirs in itertools.combinations(each, 2):
        for one, other in itertools.product(ours, theirs):
            if _overlap(one, other):
                raise CannotHold("'oneOf' with alternatives that overlap cannot be held here")


def _overlap(one: Alternative, other: Alternative) -> bool:
    numbers = {"integer", "number"}
    if one.kind != other.kind and not {one.kind, other.kind} <= numbers:
        return False
    if one.values is not None and other.values is not None:
        return bool(_spelled(one.values) & _spelled(other.values))
    if one.kind != "object" or one.values is not None or other.values is not None:
        return True
    mine, yours = shape(one), shape(other)
    for key in mine.required & yours.required:
        a, b = _listed(mine.properties[key]), _listed(yours.properties[key])
        if a is not None and b is not None and not a & b:
            return False
    return not any(
        x.required - y.properties.keys() and y.extra is None
        for x, y in ((mine, yours), (yours, mine))
    )


def _listed(schema: Schema) -> frozenset[str] | None:
    if "const" in schema:
        return _spelled([schema["const"]])
    values = schema.get("enum")
    return _spelled(values) if isinstance(values, list) else None


# -- the rules of one way


def _of_rules(rules: Rules) -> list[Alternative]:
    possible = set(KINDS)
    for rule in rules:
        kind = rule.get("type")
        named = {kind} if isinstance(kind, str) else set(kind) if isinstance(kind, list) else None
        if named is not None:
            possible &= named | ({"integer"} if "number" in named else set())
    values = _values_of(rules)
    if values is None:
        if "number" in possible:
            possible.discard("integer")
        return [Alternative(kind, rules) for kind in KINDS if kind in possible]
    fitting = [v for v in values if _kind(v) in possible and all(holds(v, r) for r in rules)]
    grouped = {kind: tuple(v for v in fitting if _kind(v) == kind) for kind in KINDS}
    return [Alternative(kind, rules, found) for kind, found in grouped.items() if found]


def _values_of(rules: Rules) -> list[object] | None:
    """The values that `const` and `enum` leave; None when they are not listed."""
    values: list[object] | None = None
    for rule in rules:
        for listed in ([rule["const"]] if "const" in rule else None, rule.get("enum")):
            if isinstance(listed, list):
                kept = (
                    listed
                    if values is None
                    else [v for v in values if _spelled([v]) & _spelled(listed)]
                )
                values = kept
    return values


def _kind(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return "integer"
    return KIND_OF.get(type(value), "")


def _spelled(values: Iterable[object]) -> frozenset[str]:
    """Values as text that is equal where JSON Schema calls them equal."""
    return frozenset(
        json.dumps(int(v) if isinstance(v, float) and v.is_integer() else v, sort_keys=True)
        for v in values
    )


def holds(value: object, rule: object) -> bool:
    """Whether a listed value keeps the bounds beside it."""
    if not isinstance(rule, Mapping):
        return rule is not False
    if isinstance(value, str):
        low, high, pattern = rule.get("minLength"), rule.get("maxLength"), rule.get("pattern")
        if isinstance(low, int) and len(value) < low:
            return False
        if isinstance(high, int) and len(value) > high:
            return False
        return not isinstance(pattern, str) or re.search(pattern, value) is not None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _in_bounds(value, rule)
    return True


def _in_bounds(value: float, rule: Schema) -> bool:
    low, high = rule.get("minimum"), rule.get("maximum")
    above, below = rule.get("exclusiveMinimum"), rule.get("exclusiveMaximum")
    return not (
        (isinstance(low, int | float) and value < low)
        or (isinstance(high, int | float) and value > high)
        or (isinstance(above, int | float) and not isinstance(above, bool) and value <= above)
        or (isinstance(below, int | float) and not isinstance(below, bool) and value >= below)
    )
