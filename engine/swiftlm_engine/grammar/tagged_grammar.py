"""Tagged grammar: arguments that stand between tags, as the readers of `tagged_calls.py` read them.

A string stands raw, everything else as JSON. A reader takes a raw text for the types that the
schema allows (tools/values.py), so a text that it would take for something else is left out here:
what the grammar lets through is read back as a value that the schema accepts.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from swiftlm_engine.grammar.lark import GrammarBuilder, Schema, part_of
from swiftlm_engine.grammar.raw_strings import either, not_beginning, terminal_of, without
from swiftlm_engine.text.chat import ToolSpec
from swiftlm_engine.text.tools.schema import (
    Alternative,
    CannotHold,
    Shape,
    alternatives,
    kinds,
    shape,
)
from swiftlm_engine.text.tools.tagged_value import ValueStyle

ANY_OBJECT: Schema = {"type": "object"}
_NUMBERS = ("integer", "number")
_NUMBER = {
    "integer": r"/-?(0|[1-9][0-9]{0,18})/",
    "number": r"/-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,17})?/",
}
# The texts that readers do not take for a type, where the schema allows it.
_NOT_TAKEN = {
    "null": r"~/\s*(null|none)\s*/i",
    "boolean": r"~/\s*(true|false)\s*/i",
    "integer": r"~/\s*-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?\s*/",
    "array": r"/\s*([^\s\[{(](?s:.*))?/",
}
_NOT_TAKEN |= {"number": _NOT_TAKEN["integer"], "object": _NOT_TAKEN["array"]}
_NO_NUMBER_BEGINS = r"/\s*([^\s0-9-](?s:.*))?/"
_CDATA, _CDATA_END = "<![CDATA[", "]]>"


@dataclass(frozen=True, slots=True)
class Tags:
    """KEY and NAME stand for what the tool says; KIND or IS_STRING for what a value is.

    `keys` is what a reader takes for a key. `avoid` are texts besides the end of a value that a
    reader would take for it.
    """

    call: str
    param: str
    param_end: str
    call_end: str
    style: ValueStyle = ValueStyle.RAW
    keys: str = r"[^\s>\"'](?:[^>\"'\n]*[^\s>\"'])?"
    after: str = ""  # behind the end of a value
    avoid: tuple[str, ...] = ()
    escaped: bool = False  # names and keys are XML attributes

    @property
    def is_typed(self) -> bool:
        """The model itself says of each value what it is."""
        return "KIND" in self.param or "IS_STRING" in self.param


def tagged(tags: Tags) -> Callable[[GrammarBuilder, ToolSpec], str]:
    def write(builder: GrammarBuilder, tool: ToolSpec) -> str:
        head = builder.literal(tags.call.replace("NAME", _attribute(tags, tool.name)))
        end = builder.literal(tags.call_end)
        shapes = shapes_of(tool)
        members = [" ".join(_members(builder, tags, tool, one)) or '""' for one in shapes]
        return f"{head} ({' | '.join(members)}) {end}"

    return write


def shapes_of(tool: ToolSpec) -> list[Shape]:
    """Each way the arguments may look; most tools have one. Raises CannotHold."""
    root = tool.parameters or ANY_OBJECT
    shapes = [shape(one) for one in alternatives(root, root) if one.kind == "object"]
    if not shapes:
        raise CannotHold("the schema of the arguments allows no object")
    return shapes


def _members(builder: GrammarBuilder, tags: Tags, tool: ToolSpec, of: Shape) -> Iterator[str]:
    for key, schema in of.properties.items():
        try:
            member = _member(builder, tags, key, schema, tool.parameters or ANY_OBJECT)
        except CannotHold as error:
            raise CannotHold(f"property '{key}': {error}") from error
        yield member if key in of.required else f"({member})?"


def _member(builder: GrammarBuilder, tags: Tags, key: str, schema: Schema, root: Schema) -> str:
    if re.fullmatch(tags.keys, key) is None:
        raise CannotHold("this model's way of writing calls has no place for such a name")
    param = tags.param.replace("KEY", _attribute(tags, key))
    tags = replace(tags, param_end=tags.param_end.replace("KEY", key))
    found = alternatives(schema, root)
    if not found:
        raise CannotHold("nothing satisfies its schema")
    value = _Value(builder, tags, schema, root, kinds(schema, root))
    if not tags.is_typed:
        return f"{builder.literal(param)} {value.of(found)}"
    groups = _typed_groups(tags, found)
    return f"({' | '.join(value.typed(param, group) for group in groups)})"


def _typed_groups(tags: Tags, found: Sequence[Alternative]) -> list[list[Alternative]]:
    """Strings; and the others, apart where each type is named."""
    names_each = "KIND" in tags.param
    groups: dict[str, list[Alternative]] = {}
    for one in found:
        name = one.kind if names_each or one.kind == "string" else ""
        groups.setdefault(name, []).append(one)
    return list(groups.values())


def _attribute(tags: Tags, text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;") if tags.escaped else text


@dataclass(frozen=True, slots=True)
class _Value:
    """Writes the values of one argument, each with its end tag."""

    builder: GrammarBuilder
    tags: Tags
    schema: Schema
    root: Schema
    kinds: frozenset[str] | None  # None: the schema does not say

    def typed(self, param: str, group: Sequence[Alternative]) -> str:
        kind = group[0].kind
        is_string = kind == "string"
        head = param.replace("KIND", kind)
        head = self.builder.literal(head.replace("IS_STRING", "true" if is_string else "false"))
        if not is_string:
            return f"{head} {self._json([one.kind for one in group])}"
        bodies = [terminal_of(one) for one in group]
        return f"{head} {self._text(bodies)}"

    def of(self, found: Sequence[Alternative]) -> str:
        strings = [one for one in found if one.kind == "string"]
        literal = self.tags.style is ValueStyle.LITERAL and self.kinds is None
        if not strings or literal:
            return self._json([one.kind for one in found])
        taken = {"array", "object"} if self.kinds is None else self.kinds - {"string"}
        others = [one for one in found if one.kind in taken]
        apart = {one.kind for one in others if _needs_json(one)}
        misread = {one.kind for one in others if not one.is_free} | apart
        if self.kinds is None:
            misread |= taken
        written = [self._raw(one, misread, apart) for one in strings]
        written += [_simple(one) for one in others if one.kind not in apart]
        text = self._text(written)
        return f"({text} | {self._json(sorted(apart))})" if apart else text

    def _raw(self, one: Alternative, misread: set[str], apart: set[str]) -> str:
        """Strings that no reader takes for a type that would not allow them.

        Those that are listed, a reader knows."""
        if one.values is not None:
            words = [self._word(str(v)) for v in one.values]
            for word in words:
                self._check_word(word)
            return either(json.dumps(word, ensure_ascii=False) for word in words)
        trimmed = self.tags.style is ValueStyle.CDATA and not one.is_free
        body = f"({terminal_of(one, trimmed)})"
        for kind in sorted(misread):
            body += f" & {_NOT_TAKEN[kind]}"
        if not one.is_free:
            body += self._kept
        # The first character has to tell a text from JSON.
        return body + (f" & {_NO_NUMBER_BEGINS}" if apart & set(_NUMBERS) else "")

    @property
    def _kept(self) -> str:
        """Nothing at an end that a reader would take off, which would leave another text."""
        if self.tags.style is ValueStyle.CDATA:  # and no white space at an end: see `trimmed`
            return f" & {not_beginning(_CDATA)}"
        if self.tags.style is not ValueStyle.WRAPPED:
            return ""
        return r" & /((?s:.*)[^\n])?/" if self._on_own_lines else r" & /([^\n](?s:.*))?/"

    @property
    def _on_own_lines(self) -> bool:
        """The tag before a value ends its line; so may the value, without a meaning."""
        return self.tags.style is ValueStyle.WRAPPED and self.tags.param.endswith("\n")

    def _word(self, word: str) -> str:
        """How a listed string is written so that it is read back as it is."""
        if self.tags.style is ValueStyle.CDATA and word != word.strip():
            return f"{_CDATA}{word}{_CDATA_END}"
        wraps = self.tags.style is ValueStyle.WRAPPED and not self._on_own_lines
        return f"\n{word}\n" if wraps and word.startswith("\n") else word

    def _check_word(self, word: str) -> None:
        """Raises CannotHold where a reader would find the end of the value inside."""
        if self.builder.has_control(self.tags.param_end):
            return
        for tag in (self.tags.param_end, *self.tags.avoid):
            inside = tag in word or (self._on_own_lines and word.startswith(tag[1:]))
            if inside:
                raise CannotHold(f"a listed value holds '{tag.strip()}', a tag of this model")

    def _text(self, bodies: Sequence[str]) -> str:
        body = either(bodies)
        if not self.builder.has_control(self.tags.param_end):
            # The end tag too: where a text has a least length, an early one would not end it.
            body = without(body, (self.tags.param_end, *self.tags.avoid))
            if self._on_own_lines:  # the line break before it is the tag's
                body += "".join(f" & {not_beginning(a[1:])}" for a in self.tags.avoid)
        if self._on_own_lines:
            body = rf"({body}) /\n?/"
        text = self.builder.text_until(self.tags.param_end, body)
        return f"{text} {self.builder.literal(self.tags.after)}"

    def _json(self, only: Sequence[str]) -> str:
        part = self.builder.schema(part_of(self.schema, self.root, only))
        end = self.tags.param_end + self.tags.after
        return f"{part} {self.builder.literal(chr(10) * self._on_own_lines + end)}"


def _needs_json(one: Alternative) -> bool:
    if one.kind in ("array", "object"):
        return True
    return one.kind in _NUMBERS and one.values is None and not one.is_free


def _simple(one: Alternative) -> str:
    """A terminal's body for the values of a type that needs no grammar of its own."""
    if one.values is not None:
        return either(json.dumps(json.dumps(value)) for value in one.values)
    if one.kind in _NUMBER:
        return _NUMBER[one.kind]
    return '"true" | "false"' if one.kind == "boolean" else '"null"'


def by_reference(schema: Mapping[str, object]) -> str | None:
    """The reference that is all the schema says."""
    ref = schema.get("$ref")
    said = [key for key in schema if key not in ("$ref", "title", "description", "default")]
    return ref if isinstance(ref, str) and not said else None
