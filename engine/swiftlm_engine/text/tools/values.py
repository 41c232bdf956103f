"""Values: the text of one argument to JSON, by the tool's schema where there is one."""

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass

from swiftlm_engine.text.tools.json_stream import NUMBER, mend_object

Schema = Mapping[str, object]
TYPE_OF = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}
TYPE_OF |= {dict: "object", type(None): "null"}


@dataclass(frozen=True, slots=True)
class Properties:
    """What a tool's schema says of its arguments."""

    schemas: Mapping[str, Schema]
    definitions: Mapping[str, Schema]

    @staticmethod
    def of(parameters: Schema | None) -> "Properties":
        parameters = parameters or {}
        properties = parameters.get("properties")
        definitions: dict[str, Schema] = {}
        for name in ("$defs", "definitions"):
            if isinstance(found := parameters.get(name), Mapping):
                definitions |= {f"#/{name}/{key}": value for key, value in found.items()}
        return Properties(properties if isinstance(properties, Mapping) else {}, definitions)

    def types(self, key: str) -> frozenset[str] | None:
        """The JSON types an argument may have; None when the schema does not say."""
        schema = self.schemas.get(key)
        found = _types(schema, self.definitions, depth=0) if schema is not None else frozenset()
        return found or None


def _types(schema: object, definitions: Mapping[str, Schema], depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth > 8:
        return frozenset()
    found: set[str] = set()
    kind = schema.get("type")
    found |= {kind} if isinstance(kind, str) else set()
    found |= {k for k in kind if isinstance(k, str)} if isinstance(kind, list) else set()
    if not found and isinstance(values := schema.get("enum"), list):
        found |= {TYPE_OF[type(v)] for v in values if type(v) in TYPE_OF}
    if not found and "const" in schema and type(schema["const"]) in TYPE_OF:
        found.add(TYPE_OF[type(schema["const"])])
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(parts := schema.get(name), list):
            found |= {t for part in parts for t in _types(part, definitions, depth + 1)}
    if isinstance(ref := schema.get("$ref"), str):
        found |= _types(definitions.get(ref), definitions, depth + 1)
    return frozenset(found)


def json_value(raw: str, types: frozenset[str] | None) -> str:
    """JSON text for a value that was written raw; a string if it is nothing else the types allow.

    Without types, only objects and arrays are taken for what they look like.
    """
    word = raw.strip()
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
