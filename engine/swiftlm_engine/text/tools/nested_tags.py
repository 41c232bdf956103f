"""MiniMax M3's calls: an element per argument, nested for objects and lists, each tag marked.

`<invoke name="f"><city>Paris</city><tags><item>a</item></tags></invoke>`, each tag behind the mark.
A block is read when it is whole.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swiftlm_engine.text.tools.schema import (
    ANY,
    CannotHold,
    Schema,
    alternatives,
    kinds,
    shape,
    words,
)
from swiftlm_engine.text.tools.values import json_literal, json_value

TAG_MARK = "]<]minimax[>["
_TAG = re.compile(re.escape(TAG_MARK) + r"<(/?)([^<>]+?)\s*>")
_INVOKE = re.compile(r"invoke\s+name\s*=\s*[\"']?([^\"']+)[\"']?")
MAX_DEPTH = 64
_DECODER = json.JSONDecoder(strict=False)


@dataclass(slots=True)
class _Element:
    tag: str
    text: str = ""
    children: "list[_Element]" = field(default_factory=list)


def parse_nested_calls(body: str, tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The calls of one block. Raises ValueError for anything else."""
    schemas = {t["function"]["name"]: t["function"].get("parameters") or ANY for t in tools}
    calls = []
    for element in _elements(body):
        name = _INVOKE.fullmatch(element.tag)
        if name is None:
            raise ValueError("not a call")
        schema = schemas.get(name[1], ANY)
        text = _json(element, schema, schema) if element.children else "{}"
        calls.append({"name": name[1], "arguments": json.loads(text)})
    return calls


def _elements(body: str) -> list[_Element]:
    root = _Element("")
    path = [root]
    at = 0
    while match := _TAG.search(body, at):
        path[-1].text += body[at : match.start()]
        at = match.end()
        closes, tag = match.groups()
        if not closes:
            if len(path) > MAX_DEPTH:
                raise ValueError("nested too deep")
            path[-1].children.append(_Element(tag))
            path.append(path[-1].children[-1])
            whole = _json_end(body, at, tag)
            path[-1].text, at = body[at:whole], whole
        elif len(path) > 1 and tag in (path[-1].tag, path[-1].tag.split()[0]):
            path.pop()
        else:
            raise ValueError(f"</{tag}> closes nothing")
    if len(path) > 1 or body[at:].strip():
        raise ValueError("an element is not closed")
    return root.children


def _json_end(body: str, at: int, tag: str) -> int:
    """Where the JSON ends that is all of an element: its texts may hold a tag. `at` if it is not
    JSON."""
    if body[at : at + 1] not in ("{", "["):
        return at
    try:
        _, end = _DECODER.raw_decode(body, at)
    except (ValueError, RecursionError):
        return at
    return end if body[end:].lstrip().startswith(f"{TAG_MARK}</{tag}") else at


def _json(element: _Element, schema: Schema, root: Schema) -> str:
    """The element's value as JSON text, by the schema where it says something."""
    types = kinds(schema, root)
    if not element.children:
        empty = {frozenset({"object"}): "{}", frozenset({"array"}): "[]"}
        if not element.text.strip() and types in empty:
            return empty[types]
        if types is None:
            return json_literal(element.text)
        return json_value(element.text, types, words(schema, root))
    is_list = all(child.tag == "item" for child in element.children)
    if is_list and (types is None or "array" in types):
        items = (
            _json(child, _item(schema, root, at), root) for at, child in enumerate(element.children)
        )
        return f"[{', '.join(items)}]"
    members: dict[str, str] = {}
    for child in element.children:
        members.setdefault(child.tag, _json(child, _member(schema, root, child.tag), root))
    pairs = (f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in members.items())
    return f"{{{', '.join(pairs)}}}"


def _member(schema: Schema, root: Schema, key: str) -> Schema:
    def of(one: Any) -> Schema | None:
        found = shape(one) if one.kind == "object" else None
        return None if found is None else found.properties.get(key, found.extra)

    return _any_of(schema, root, of)


def _item(schema: Schema, root: Schema, at: int) -> Schema:
    def of(one: Any) -> Schema | None:
        if one.kind != "array":
            return None
        heads = next((h for h in one.keyword("prefixItems") if isinstance(h, list)), [])
        rest = next((i for i in one.keyword("items") if isinstance(i, Mapping)), ANY)
        return heads[at] if at < len(heads) and isinstance(heads[at], Mapping) else rest

    return _any_of(schema, root, of)


def _any_of(schema: Schema, root: Schema, part: Callable[[Any], Schema | None]) -> Schema:
    try:
        found = [p for p in map(part, alternatives(schema, root)) if p is not None]
    except CannotHold:
        return ANY
    return ANY if not found else found[0] if len(found) == 1 else {"anyOf": found}
