"""Request bodies as an OpenAPI document allows them, or nearly."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

# Words that mean something to some field; random text alone would never pass a door.
WORDS = (
    *("text", "user", "assistant", "tool", "system", "function", "custom", "auto", "none", "f"),
    *("message", "reasoning", "function_call", "json_object", "json_schema", "image_url"),
    *("tool_use", "tool_result", "required", "any", "high", "base64", "5m"),
)


@dataclass(frozen=True, slots=True)
class Generator:
    """Values that a JSON schema allows, now and then one that it does not; seeded.

    (Hypothesis takes ten times as long for the same thousand bodies, and cannot shrink them over
    a socket in useful time.)
    """

    random: Random
    schemas: Mapping[str, Any]  # of the document, by name
    models: tuple[str, ...]  # names that a field may mean

    def value(self, schema: dict[str, Any], depth: int = 0) -> Any:
        if depth and self.random.random() < 0.04:
            return self.wild(2)
        if "$ref" in schema:
            return self.value(self.schemas[schema["$ref"].rsplit("/", 1)[1]], depth + 1)
        if "anyOf" in schema:
            return self.value(self.random.choice(schema["anyOf"]), depth + 1)
        match schema.get("type"):
            case "string":
                words = (*WORDS, *self.models)
                return self.random.choice(words) if self.random.random() < 0.8 else self.text()
            case "integer":
                low, high = schema.get("minimum", -3), min(schema.get("maximum", 99), 999)
                return self.random.randint(low, high)
            case "number":
                return self.random.uniform(schema.get("minimum", -3), schema.get("maximum", 9))
            case "boolean":
                return self.random.random() < 0.5
            case "array":
                num_items = self.random.randint(0, 3)
                return [self.value(schema.get("items", {}), depth + 1) for _ in range(num_items)]
            case "object":
                return self.object(schema, depth)
            case "null":
                return None
        return self.wild(2)

    def object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties")
        if not properties or depth > 12:
            return {self.random.choice((*WORDS, *self.models)): self.wild(1) for _ in range(2)}
        required = schema.get("required", [])
        optional = [name for name in properties if name not in required]
        chosen = self.random.sample(optional, min(len(optional), self.random.randint(0, 4)))
        return {name: self.value(properties[name], depth + 1) for name in (*required, *chosen)}

    def wild(self, depth: int) -> Any:
        kind = self.random.randrange(8 if depth else 6)
        if kind >= 6:
            inner = [self.wild(depth - 1) for _ in range(self.random.randint(0, 3))]
            return inner if kind == 6 else {self.text(): value for value in inner}
        choices = (None, True, self.random.randint(-(2**70), 2**70), 1e300, -0.0, self.text())
        return choices[kind]

    def text(self) -> str:
        codes = [self.random.choice((32, 65, 0, 0x2028, 0xE9, 0x1F600, 34, 92)) for _ in range(6)]
        return "".join(map(chr, codes))


def without_placeholders(path: str, generator: Generator) -> str:
    """A route's path with generated text in the place of its variables."""
    return re.sub(r"{[^}]*}", lambda _: urllib.parse.quote(generator.text()), path)
