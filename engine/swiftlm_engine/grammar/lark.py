"""Grammar: parts of an llguidance grammar, put together in its dialect of Lark.

Control tokens stand in a grammar as tokens and not as their spelling, so `literal` needs to know
which texts are control tokens.
"""

import json
import re
from collections.abc import Mapping, Sequence

# Between the tokens of JSON: a line break and its indentation at most. Without a bound, a model
# that is kept from ending may write white space for ever.
WHITESPACE = r"\n?[ \t]{0,24}"
# Forced text is cut into tokens before an alternative that shares its beginning is known, and
# then a control token spelled like that text is out of reach.
OPTIONS = '%llguidance {"no_forcing": true}'
ANY_TEXT = "/(?s:.*)/"
Schema = Mapping[str, object]


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

    def terminal(self, body: str) -> str:
        name = self._name("T")
        self._rules.append(f"{name}: {body}")
        return name

    def text_until(self, end: str) -> str:
        """Any text up to and with `end`."""
        if self._pattern.match(end):
            # No text holds a control token, so the text ends there by itself.
            return f"{self.terminal(ANY_TEXT)} {self.literal(end)}"
        rule = self._name("text")
        self._rules.append(f"{rule}[suffix={json.dumps(end)}]: {ANY_TEXT}")
        return rule

    def schema(self, schema: Schema) -> str:
        """An expression for JSON that the schema accepts."""
        options = {"whitespace_flexible": True, "whitespace_pattern": WHITESPACE}
        return self._part({"json_schema": {**schema, "x-guidance": options}})

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


def properties_of(schema: Schema) -> tuple[dict[str, Schema], list[str]]:
    """The properties of an object's schema, each with the definitions it may refer to, and which
    of them are required."""
    found = schema.get("properties")
    shared = {k: schema[k] for k in ("$defs", "definitions") if k in schema}
    properties: dict[str, Schema] = {}
    if isinstance(found, Mapping):
        properties = {k: {**v, **shared} for k, v in found.items() if isinstance(v, Mapping)}
    required = schema.get("required")
    names = [k for k in properties if isinstance(required, list) and k in required]
    return properties, names
