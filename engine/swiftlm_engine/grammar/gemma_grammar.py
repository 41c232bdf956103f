"""Gemma grammar: the arguments that Gemma writes, `{key:<|"|>text<|"|>,n:1}`, by a JSON schema."""

import json
import re
import time
from collections.abc import Callable

from swiftlm_engine.grammar.lark import TOO_LARGE, GrammarBuilder, Schema, in_order, part_of
from swiftlm_engine.grammar.raw_strings import either, terminal_of, without
from swiftlm_engine.grammar.tagged_grammar import ANY_OBJECT, by_reference, shapes_of
from swiftlm_engine.text.chat import ToolSpec
from swiftlm_engine.text.tools.schema import (
    ANY,
    Alternative,
    CannotHold,
    Shape,
    all_of,
    alternatives,
    resolved,
    shape,
)

BARE_KEY = re.compile(r"[\w$@.-](?:[\w $@./-]*[\w$@./-])?")
ANY_KEY = "/[A-Za-z_][A-Za-z0-9_.-]{0,63}/"
MAX_VALUES = 1500  # of one tool
MAX_S = 2.0  # for one tool
ANY_OF_ALONE = frozenset(("anyOf", "title", "description", "default"))
COMMA = '","'


def gemma(delimiter: str) -> Callable[[GrammarBuilder, ToolSpec], str]:
    def write(builder: GrammarBuilder, tool: ToolSpec) -> str:
        values = _Values(builder, tool.parameters or ANY_OBJECT, delimiter)
        written = [values.object(one) for one in shapes_of(tool)]
        return f"{builder.literal(f'call:{tool.name}')} ({' | '.join(written)})"

    return write


class _Values:
    """The values of one tool. A schema that others refer to becomes a rule, once."""

    def __init__(self, builder: GrammarBuilder, root: Schema, delimiter: str) -> None:
        self._builder = builder
        self._root = root
        self._delimiter = delimiter
        self._quote = builder.literal(delimiter)
        self._rules: dict[str, str] = {}  # by reference
        self._count = 0
        self._deadline = time.monotonic() + MAX_S

    def value(self, schema: Schema) -> str:
        reference = by_reference(schema)
        if reference is None:
            return self._any_of(schema)
        name = self._rules.get(reference)
        if name is None:
            name = self._rules[reference] = self._builder.reserve()
            target = resolved(reference, self._root)
            self._builder.define(name, self._any_of(target if isinstance(target, dict) else ANY))
        return name

    def object(self, of: Shape) -> str:
        wanted = [
            self._member(key, of.properties[key]) for key in of.properties if key in of.required
        ]
        others = [
            self._member(key, of.properties[key]) for key in of.properties if key not in of.required
        ]
        members = in_order(wanted, others, COMMA)
        if not of.properties and of.extra:
            # A map: its keys are the model's to choose.
            member = f'{self._builder.terminal(ANY_KEY)} ":" {self.value(of.extra)}'
            members = f"({member} ({COMMA} {member})*)?"
        return self._builder.rule(f'"{{" {members} "}}"')

    def _member(self, key: str, schema: Schema) -> str:
        if self._delimiter in key:
            raise CannotHold(f"property '{key}': this model has no way to write such a name")
        bare = BARE_KEY.fullmatch(key) is not None
        head = f"{key}:" if bare else f"{self._delimiter}{key}{self._delimiter}:"
        try:
            return f"{self._builder.literal(head)} {self.value(schema)}"
        except CannotHold as error:
            raise CannotHold(f"property '{key}': {error}") from error

    def _any_of(self, schema: Schema) -> str:
        self._count += 1
        if self._count > MAX_VALUES or time.monotonic() > self._deadline:
            raise CannotHold(TOO_LARGE)
        branches = schema.get("anyOf")
        if isinstance(branches, list) and branches and not schema.keys() - ANY_OF_ALONE:
            # Each for itself, so that a schema that many refer to is written once.
            known = [branch for branch in branches if isinstance(branch, dict)]
            if len(known) == len(branches):
                return f"({' | '.join(map(self.value, known))})"
        found = alternatives(schema, self._root)
        if not found:
            raise CannotHold("nothing satisfies its schema")
        if by_reference(schema) is None and all(one.is_free for one in found) and len(found) >= 6:
            # What the schema leaves open is written as a string.
            return f"{self._quote} {self._builder.text_until(self._delimiter)}"
        written = [self._of_kind(one) for one in found]
        return f"({' | '.join(written)})"

    def _of_kind(self, one: Alternative) -> str:
        one.check()
        if one.kind == "string":
            body = terminal_of(one)
            if not self._builder.has_control(self._delimiter):
                body = without(body, [self._delimiter])
            return f"{self._quote} {self._builder.text_until(self._delimiter, body)}"
        if one.values is not None:
            if one.kind in ("array", "object"):
                raise CannotHold(f"a listed {one.kind} cannot be held here")
            return f"({either(json.dumps(json.dumps(v)) for v in one.values)})"
        if one.kind == "object":
            return self.object(shape(one))
        if one.kind == "array":
            return self._array(one)
        rules = all_of(list(one.rules)) or ANY
        return self._builder.schema(part_of(rules, self._root, [one.kind]))

    def _array(self, one: Alternative) -> str:
        if any(one.keyword("uniqueItems")):
            raise CannotHold("'uniqueItems' cannot be held here")
        first = [p for p in one.keyword("prefixItems") if isinstance(p, list)]
        if len(first) > 1:
            raise CannotHold("several 'prefixItems' cannot be held here")
        heads = [self.value(p if isinstance(p, dict) else ANY) for p in (first[0] if first else ())]
        rest = all_of([i for i in one.keyword("items") if not isinstance(i, list)])
        item = self.value(rest) if rest is not None else ""
        low = max((n for n in one.keyword("minItems") if isinstance(n, int)), default=0)
        high = min((n for n in one.keyword("maxItems") if isinstance(n, int)), default=None)
        return self._builder.rule(f'"[" {_row(heads, item, low, high)} "]"')


def _row(heads: list[str], item: str, low: int, high: int | None) -> str:
    """Items with commas between them: the heads in their places, then more of `item`."""
    if high is not None and high < low:
        raise CannotHold("'maxItems' is below 'minItems'")
    if not item and low > len(heads):
        raise CannotHold("'minItems' asks for more than 'prefixItems' has")
    heads = heads[:high]
    least = max(0, low - len(heads))
    most = "" if high is None else str(high - len(heads))
    more = f"({COMMA} {item}){{{least},{most}}}" if item and most != "0" else ""
    if heads:
        row, needed = more, max(low, 0)
        for at in range(len(heads) - 1, -1, -1):
            comma = f"{COMMA} " if at else ""
            row = f"{comma}{heads[at]} {row}"
            row = row if at < needed else f"({row})?"
        return row
    if not item or most == "0":
        return ""
    after = "" if high is None else str(high - 1)
    row = f"{item} ({COMMA} {item}){{{max(0, low - 1)},{after}}}"
    return row if low else f"({row})?"
