"""Promises of schemas taken apart: one meaning for writers and readers of calls."""

import pytest

from swiftlm_engine.grammar.raw_strings import searched
from swiftlm_engine.text.emitter import Emitter, EmitterOptions
from swiftlm_engine.text.events import ToolCallDelta, ToolCallStart
from swiftlm_engine.text.tools.pythonic_calls import emit_calls
from swiftlm_engine.text.tools.schema import CannotHold, alternatives, kinds, shape, words
from swiftlm_engine.text.tools.values import Properties, json_value


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"allOf": [{"type": ["string", "integer"]}, {"enum": [1, 2, "a"]}, {"maximum": 1}]},
         {"string", "integer"}),
        ({"$ref": "#/$defs/A"}, {"string"}),
        ({"const": None}, {"null"}),
        ({"type": "number", "enum": [1, 2.5]}, {"integer", "number"}),
        ({"description": "anything"}, None),
        ({"$ref": "#/$defs/Nothing"}, None),
        ({"$ref": "#/$defs/Loop"}, None),
    ],
)  # fmt: skip
def test_the_types_of_a_schema(schema: dict[str, object], types: set[str] | None) -> None:
    root = {"$defs": {"A": {"enum": ["x", "y"]}, "Loop": {"$ref": "#/$defs/Loop"}}}
    assert kinds(schema, root) == types


def test_listed_values_keep_the_bounds_beside_them() -> None:
    found = alternatives({"enum": ["a", "bcd", 1, 9], "maxLength": 2, "maximum": 5}, {})
    assert [(one.kind, one.values) for one in found] == [("integer", (1,)), ("string", ("a",))]


def test_a_word_that_is_listed_is_a_string_whatever_it_looks_like() -> None:
    schema = {"properties": {"a": {"enum": ["1", 2, None, "null"]}}}
    of = Properties.of(schema)
    read = [json_value(raw, of.types("a"), of.words("a")) for raw in ("1", "2", "null", "None")]
    assert read == ['"1"', "2", '"null"', "null"]
    assert words(schema["properties"]["a"], schema) == {"1", "null"}


def test_members_of_unions_and_conjunctions_come_together() -> None:
    schema = {
        "allOf": [{"properties": {"a": {"type": "string"}}, "required": ["a"]}],
        "properties": {"a": {"maxLength": 3}, "b": {}},
    }
    (one,) = [a for a in alternatives(schema, schema) if a.kind == "object"]
    assert set(shape(one).properties) == {"a", "b"}
    assert shape(one).required == {"a"}
    assert {a.kind for a in alternatives(shape(one).properties["a"], schema)} == {"string"}


def test_alternatives_that_overlap_are_refused_under_one_of() -> None:
    with pytest.raises(CannotHold, match="oneOf"):
        alternatives({"oneOf": [{"type": "string"}, {"minLength": 2}]}, {})
    told = {"oneOf": [
        {"type": "object", "properties": {"k": {"const": kind}}, "required": ["k"]}
        for kind in ("a", "b")
    ]}  # fmt: skip
    assert len(alternatives(told, {})) == 2


def test_a_pattern_is_searched_for_unless_it_is_anchored() -> None:
    assert searched("^a$") == "(/(?:a)/)"
    assert searched("a/b|^c") == r"(/(?s:.*)(?:a\/b)(?s:.*)/) | (/(?:c)(?s:.*)/)"
    assert searched(r"[|]|x\$") == r"(/(?s:.*)(?:[|])(?s:.*)/) | (/(?s:.*)(?:x\$)(?s:.*)/)"


def pythonic(text: str) -> list[tuple[str, str]] | None:
    emitter = Emitter(EmitterOptions())
    if not emit_calls(emitter, text):
        return None
    calls: list[tuple[str, str]] = []
    for event in emitter.take():
        if isinstance(event, ToolCallStart):
            calls.append((event.name, ""))
        elif isinstance(event, ToolCallDelta):
            calls[-1] = calls[-1][0], calls[-1][1] + event.arguments_fragment
    return calls


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("[get-weather(a=2)]", [("get-weather", '{"a": 2}')]),
        ("[look(user-id=2, from='x')]", [("look", '{"user-id": 2, "from": "x"}')]),
        ('[f(from=[{"a": 1}, {"b": 2}])]', [("f", '{"from": [{"a": 1}, {"b": 2}]}')]),
        ("[f(a=True, b=None, c=(1, 2.50), d={'k': false})]",
         [("f", '{"a": true, "b": null, "c": [1, 2.50], "d": {"k": false}}')]),
        ("[srv:a/b.c(), g(x=Paris)]", [("srv:a/b.c", "{}"), ("g", '{"x": "Paris"}')]),
        ('[f(**{"a=b": 1}, c="é\\u00e9\\n\\\'")]', [("f", '{"a=b": 1, "c": "éé\\n\'"}')]),
        ('[f(a="two\nlines", b=1e400)]', [("f", '{"a": "two\\nlines", "b": 1e400}')]),
        ("[f(1)]", None),
        ("[f(a=g(1))]", None),
        ("f(a=1)", None),
        ("[f(a=1)] and", None),
        ("[f(a=" + "[" * 500, None),
    ],
)  # fmt: skip
def test_pythonic_calls(text: str, calls: list[tuple[str, str]] | None) -> None:
    assert pythonic(text) == calls
