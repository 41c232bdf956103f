"""Values: the text of one argument to JSON, by the tool's schema where there is one."""

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass

from swiftlm_engine.text.tools.json_stream import NUMBER, mend_object
from swiftlm_engine.text.tools.schema import (
    ANY,
    CannotHold,
    Schema,
    alternatives,
    kinds,
    shape,
    words,
)


@dataclass(frozen=True, slots=True)
class Properties:
    """What a tool's schema says of its arguments."""

    schemas: Mapping[str, Schema]
    root: Schema

    @staticmethod
    def of(parameters: Schema | None) -> "Properties":
        parameters = parameters or {}
        return Properties(_members(parameters), parameters)

    def types(self, key: str) -> frozenset[str] | None:
        """The JSON types an argument may have; None when the schema does not say."""
        return kinds(self.schemas.get(key, ANY), self.root)

    def words(self, key: str) -> frozenset[str]:
        """The strings that the schema lists for an argument."""
        return words(self.schemas.get(key, ANY), self.root)


def _members(parameters: Schema) -> Mapping[str, Schema]:
    """Of all the ways the arguments may look, every member; of one with several, any of them."""
    try:
        shapes = [
            shape(one) for one in alternatives(parameters, parameters) if one.kind == "object"
        ]
    except CannotHold:
        given = parameters.get("properties")
        return given if isinstance(given, Mapping) else {}
    found: dict[str, list[Schema]] = {}
    for one in shapes:
        for key, schema in one.properties.items():
            found.setdefault(key, []).append(schema)
    return {k: v[0] if len(v) == 1 else {"anyOf": v} for k, v in found.items()}


def json_value(raw: str, types: frozenset[str] | None, words: frozenset[str] = frozenset()) -> str:
    """JSON text for a value that was written raw; a string if it is nothing else the types allow.

    Without types, only objects and arrays are taken for what they look like. `words` are strings
    that the schema lists, which are strings whatever they look like.
    """
    word = raw.strip()
    for listed in (raw, *(one for one in words if one.strip() == word)):
        if listed in words:
            return json.dumps(listed, ensure_ascii=False)
    if types is None:
        types = frozenset({"object", "array", "string"})
    if "null" in types and word.lower() in ("null", "none"):
        return "null"
    if "boolean" in types and word.lower() in ("true", "false"):
        return word.lower()
    if types & {"integer", "number"} and (number := _number(word, "number" in types)):
        return number
    if types & {"object", "array"} and (container := _container(word, types)):
        return container
    return json.dumps(raw, ensure_ascii=False)


def json_literal(raw: str) -> str:
    """JSON text for a value that was written as JSON; a string if it is none."""
    word = raw.strip()
    if word.lower() in ("true", "false"):
        return word.lower()
    if word.lower() in ("null", "none"):
        return "null"
    if NUMBER.fullmatch(word):
        return word
    return _container(word, frozenset({"object", "array"})) or _own_string(word, raw)


def _own_string(word: str, raw: str) -> str:
    """A string that was written with its quotes stays as it is."""
    try:
        quoted = word.startswith('"') and isinstance(json.loads(word), str)
    except ValueError:
        quoted = False
    return word if quoted else json.dumps(raw, ensure_ascii=False)


def _number(word: str, fractions: bool) -> str | None:
    if not NUMBER.fullmatch(word):
        return None
    if fractions or word.lstrip("-").isdigit():
        return word
    # An integer written as 3.0 or 1e3.
    value = float(word)
    return str(int(value)) if value.is_integer() else None


def _container(word: str, types: frozenset[str]) -> str | None:
    """The object or array, mended; Python's spelling counts."""
    if word[:1] == "{" and "object" in types and (mended := mend_object(word)):
        return mended
    if word[:1] == "[" and "array" in types and (mended := mend_object('{"_": ' + word + "}")):
        return mended[mended.index("[") : -1]
    kind = {"{": "object", "[": "array", "(": "array"}.get(word[:1])
    if kind not in types:
        return None
    try:
        value = ast.literal_eval(word)
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
