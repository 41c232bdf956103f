"""Grammar: parts of an llguidance grammar, put together in its dialect of Lark.

Control tokens stand in a grammar as tokens and not as their spelling, so `literal` needs to know
which texts are control tokens.
"""

import json
import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

# Between the tokens of JSON: a line break and its indentation at most. Without a bound, a model
# that is kept from ending may write white space for ever.
WHITESPACE = r"\n?[ \t]{0,24}"
# Forced text is cut into tokens before an alternative that shares its beginning is known, and
# then a control token spelled like that text is out of reach.
OPTIONS = '%llguidance {"no_forcing": true}'
ANY_TEXT = "/(?s:.*)/"
Schema = Mapping[str, object]
TOO_LARGE = "the schema is too large to be enforced here. Make it smaller"


class GrammarBuilder:
    def __init__(self, control_ids: Mapping[str, int]) -> None:
        self._control_ids = control_ids
        longest_first = sorted(control_ids, key=len, reverse=True)
        alternatives = "|".join(map(re.escape, longest_first)) or "(?!)"
        self._pattern = re.compile(f"({alternatives})")
        self._rules: list[str] = []
        self._parts: list[dict[str, object]] = []
        self._count = 0

    def literal(self, text: str) -> str:
        """An expression for exactly this text; empty for no text."""
        return " ".join(self._piece(piece) for piece in self._pattern.split(text) if piece)

    def rule(self, body: str) -> str:
        """A new rule; its name."""
        name = self._name("r")
        self._rules.append(f"{name}: {body}")
        return name

    def reserve(self) -> str:
        """The name of a rule that is defined later, and may refer to itself."""
        return self._name("r")

    def define(self, name: str, body: str) -> None:
        self._rules.append(f"{name}: {body}")

    def terminal(self, body: str) -> str:
        name = self._name("T")
        self._rules.append(f"{name}: {body}")
        return name

    def has_control(self, text: str) -> bool:
        """Some of the text is a control token, which no other text can spell."""
        return self._pattern.search(text) is not None

    def text_until(self, end: str, body: str = ANY_TEXT) -> str:
        """Text of a terminal's `body` up to and with `end`, which ends it where it comes first."""
        control = self._pattern.search(end)
        if control is not None:
            # No text holds a control token, so the text ends there by itself.
            before = end[: control.start()]
            written = f"({body}) {json.dumps(before)}" if before else body
            return f"{self.terminal(written)} {self.literal(end[control.start() :])}"
        rule = self._name("text")
        self._rules.append(f"{rule}[suffix={json.dumps(end)}]: {self.terminal(body)}")
        return rule

    def schema(self, schema: Schema) -> str:
        """An expression for JSON that the schema accepts."""
        options = {"whitespace_flexible": True, "whitespace_pattern": WHITESPACE}
        known = _loosened(schema)
        return self._part({"json_schema": {**known, "x-guidance": options}})

    def lark(self, grammar: str) -> str:
        """An expression for another grammar."""
        return self._part({"lark_grammar": grammar})

    def build(self, start: str) -> str:
        """The whole grammar, as llguidance takes it."""
        lark = "\n".join([OPTIONS, f"start: {start}", *self._rules])
        return json.dumps({"grammars": [{"lark_grammar": lark}, *self._parts]})

    def _part(self, grammar: dict[str, object]) -> str:
        name = self._name("part")
        self._parts.append({"name": name, **grammar})
        return f"@{name}"

    def _piece(self, piece: str) -> str:
        token_id = self._control_ids.get(piece)
        return f"<[{token_id}]>" if token_id is not None else json.dumps(piece)

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._count}"


def in_order(required: Sequence[str], optional: Sequence[str], separator: str) -> str:
    """Members with a separator between them: all required ones, then any of the optional ones."""
    if required:
        more = "".join(f" ({separator} {member})?" for member in optional)
        return f" {separator} ".join(required) + more
    choices = []
    for i, member in enumerate(optional):
        more = "".join(f" ({separator} {later})?" for later in optional[i + 1 :])
        choices.append(f"({member}{more})")
    return f"({' | '.join(choices)})?" if choices else ""


def part_of(schema: Schema, root: Schema, only: Sequence[str] = ()) -> Schema:
    """A part of a whole schema as a schema of its own, for values of these JSON types only."""
    definitions = {k: root[k] for k in ("$defs", "definitions") if isinstance(root.get(k), Mapping)}
    part = {"allOf": [schema, {"type": list(only)}] if only else [schema], **definitions}
    if not _refers_outside(part):
        return part
    # A reference that leads elsewhere in the whole finds the whole among the definitions.
    shared = definitions.get("$defs", {})
    moved = _moved({**part, "$defs": {**shared, WHOLE: root}})  # type: ignore[dict-item]
    return moved if isinstance(moved, dict) else part


WHOLE = "whole-of-the-arguments"
HERE = re.compile(r"#/(\$defs|definitions)/")


def _refers_outside(node: object) -> bool:
    if isinstance(node, Mapping):
        ref = node.get("$ref")
        outside = isinstance(ref, str) and ref.startswith("#") and not HERE.match(ref)
        return outside or any(map(_refers_outside, node.values()))
    return isinstance(node, list) and any(map(_refers_outside, node))


def _moved(node: object) -> object:
    if isinstance(node, list):
        return [_moved(one) for one in node]
    if not isinstance(node, Mapping):
        return node
    moved = {key: _moved(value) for key, value in node.items()}
    ref = node.get("$ref")
    if isinstance(ref, str) and ref.startswith("#") and not HERE.match(ref):
        moved["$ref"] = f"#/$defs/{WHOLE}{ref[1:]}"
    return moved


# The formats that llguidance enforces. Any other says nothing, as JSON Schema has it.
KNOWN_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)


# Zod's pattern for e-mail addresses, and the same without lookaheads, which no grammar knows.
_ZOD_EMAIL = (
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]"
    r"@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
)
SAME_PATTERNS = {
    _ZOD_EMAIL: r"^([A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+\-]"
    r"@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
}


# Generators for TypeScript name definitions as types are written: `#/definitions/List<string>`.
_IN_URIS = "#%/:?=&+,;@!$'()*~[]"

# llguidance holds bounds up to these. Wider ones are those of a type (an int64, a float32), and no
# value that is written is near them: the nearer bound lets nothing wrong through.
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_LARGEST_INTEGER = 9 * 10**18
_LARGEST_NUMBER = 10**18


def _held_bound(key: str, bound: int | float, integer: bool) -> int | float:
    largest = _LARGEST_INTEGER if integer else _LARGEST_NUMBER
    return max(bound, -largest) if key in ("minimum", "exclusiveMinimum") else min(bound, largest)


def _loosened(node: Schema) -> dict[str, object]:
    """Without the keywords that say nothing, some of which llguidance would refuse."""
    known: dict[str, object] = {}
    for key, value in node.items():
        if key == "format" and isinstance(value, str) and value not in KNOWN_FORMATS:
            continue
        if key == "propertyNames" and value in (True, {}, {"type": "string"}):
            continue
        if key in ("const", "enum", "default", "examples"):
            known[key] = value
        elif key == "pattern" and isinstance(value, str):
            known[key] = SAME_PATTERNS.get(value, value)
        elif key == "$ref" and isinstance(value, str):
            known[key] = quote(value, safe=_IN_URIS)
        elif key in _BOUNDS and isinstance(value, int | float) and not isinstance(value, bool):
            known[key] = _held_bound(key, value, node.get("type") == "integer")
        elif isinstance(value, Mapping):
            known[key] = _loosened(value)
        elif isinstance(value, list):
            known[key] = [_loosened(v) if isinstance(v, Mapping) else v for v in value]
        else:
            known[key] = value
    return known
