"""Endless: a schema of which no value ever ends, because each holds another one.

A grammar of it compiles, and an answer by it goes on until the context is full.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping

from swiftlm_engine.grammar.lark import Schema
from swiftlm_engine.text.tools.schema import pointer_key

DEFINITIONS = ("$defs", "definitions")
DATA = ("const", "enum", "default", "examples")
ROOT = "#"


class Ends:
    """Which of the schemas that one schema refers to, itself among them, have a value that ends."""

    def __init__(self, schema: Schema) -> None:
        self._ending: set[str] = set()
        self._reached = dict(_reached(schema))
        self._settle()

    @property
    def endless(self) -> str:
        """A reference to a schema without such a value; empty if all have one."""
        return next((ref for ref in self._reached if ref not in self._ending), "")

    def of(self, node: object) -> bool:
        """Of a schema in it."""
        if not isinstance(node, Mapping):
            return True
        ref = node.get("$ref")
        if isinstance(ref, str) and ref in self._reached and ref not in self._ending:
            return False
        if "const" in node or "enum" in node:
            return True
        if not all(map(self.of, _list(node.get("allOf")))):
            return False
        choices = (_list(node.get(key)) for key in ("anyOf", "oneOf"))
        if any(found and not any(map(self.of, found)) for found in choices):
            return False
        return not self._must_be_endless(node)

    def members(self, node: Mapping[str, object]) -> list[str]:
        """The names of required members that never end."""
        properties = node.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        return [
            name
            for name in _list(node.get("required"))
            if isinstance(name, str) and not self.of(known.get(name))
        ]

    def items(self, node: Mapping[str, object]) -> bool:
        """Whether one of the items that there must be never ends."""
        count = node.get("minItems")
        if not isinstance(count, int) or count < 1:
            return False
        first = _list(node.get("prefixItems"))[:count]
        return not all(map(self.of, first)) or (
            len(first) < count and not self.of(node.get("items"))
        )

    def _must_be_endless(self, node: Mapping[str, object]) -> bool:
        """An object or array, as its types say, with a member or item that never ends."""
        kind = node.get("type")
        kinds = set(kind) if isinstance(kind, list) else {kind}
        if kinds - {"object", "array", None}:
            return False
        ways = [
            bool(self.members(node)) if one == "object" else self.items(node)
            for one in kinds - {None}
        ]
        # Without a type, what is said of members is meant for an object.
        return all(ways) if ways else bool(self.members(node))

    def _settle(self) -> None:
        users: dict[str, list[str]] = defaultdict(list)
        for ref, node in self._reached.items():
            for used in _used(node):
                users[used].append(ref)
        waiting = deque(reversed(self._reached))
        while waiting:
            ref = waiting.popleft()
            if ref not in self._ending and self.of(self._reached[ref]):
                self._ending.add(ref)
                waiting.extend(users[ref])


def references(node: object, passed_over: tuple[str, ...] = DATA) -> Iterator[str]:
    """In a schema, but for what stands under some of its keywords."""
    if isinstance(node, list):
        for one in node:
            yield from references(one, passed_over)
    elif isinstance(node, Mapping):
        if isinstance(ref := node.get("$ref"), str):
            yield ref
        for key, value in node.items():
            if key not in passed_over:
                yield from references(value, passed_over)


def _used(node: object) -> Iterator[str]:
    """Definitions only count where they are referred to."""
    return references(node, (*DATA, *DEFINITIONS))


def _reached(schema: Schema) -> Iterator[tuple[str, object]]:
    """The root, and all that it refers to, nearest first."""
    seen, waiting = {ROOT}, deque[tuple[str, object]]([(ROOT, schema)])
    while waiting:
        ref, node = waiting.popleft()
        yield ref, node
        for further in _used(node):
            if further not in seen and (found := _target(schema, further)) is not None:
                seen.add(further)
                waiting.append((further, found))


def _target(schema: Schema, ref: str) -> object:
    """None for one that does not lead into this schema."""
    if ref != ROOT and not ref.startswith("#/"):
        return None
    node: object = schema
    for part in ref.split("/")[1:]:
        key = pointer_key(part)
        if isinstance(node, list):
            node = node[int(key)] if key.isdecimal() and int(key) < len(node) else None
        else:
            node = node.get(key) if isinstance(node, Mapping) else None
    return node


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
