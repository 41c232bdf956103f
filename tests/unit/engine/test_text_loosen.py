"""Promises for schemas as people generate them: enforced as far as can be, the rest by name."""

import importlib
import inspect
import json
import pkgutil
import random
import time
from pathlib import Path

import anthropic.types
import pytest
from grammar_bench import Bench, bench_of
from pydantic import BaseModel, Field

from swiftlm_engine.grammar.constraint import AnswerOrCalls, ForcedCall, GrammarRefused, JsonSchema
from swiftlm_engine.grammar.endless import Ends
from swiftlm_engine.grammar.loosen import circle, without_lookaround
from swiftlm_engine.grammar.row_constraint import make_constraints
from swiftlm_engine.grammar.settle import settle
from swiftlm_engine.messages import EngineFault, GenerateJob, Grammar, GrammarKind
from swiftlm_engine.text.chat import ToolSpec

EMAIL = (
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]"
    r"@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
)


def tool(schema: object, name: str = "send", strict: bool = False) -> ToolSpec:
    parameters = {"type": "object", "properties": {"to": schema}, "required": ["to"]}
    return ToolSpec(name, "", parameters, strict)


class Tagged(BaseModel):
    tags: set[str] = Field(max_length=3)


WEAKER = {  # what is given up, and where
    "lookahead": ({"type": "string", "pattern": "^(?!a)[a-c]{2}$"},
                  "properties.to.pattern (^(?!a)"),
    "uniqueItems": ({"type": "array", "items": {"enum": ["x", "y"]}, "uniqueItems": True},
                    "properties.to.uniqueItems"),
    "if": ({"type": "string", "if": {"maxLength": 2}, "then": {"const": "x"}}, "properties.to.if"),
    "not": ({"type": "string", "not": {"const": "x"}}, "properties.to.not"),
    "contains": ({"type": "array", "items": {"type": "integer"}, "contains": {"const": 1}},
                 "properties.to.contains"),
    "dependentRequired": (
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
         "additionalProperties": False, "dependentRequired": {"a": ["b"]}},
        "properties.to.dependentRequired",
    ),
    "oneOf": ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]},
              "properties.to.oneOf"),
    "$ref": ({"$ref": "https://example.com/a.json"}, "properties.to.$ref (https://example.com"),
}  # fmt: skip


@pytest.fixture(scope="module")
def benches() -> dict[str, Bench]:
    return {family: bench_of(family) for family in ("hermes", "qwen", "gemma4", "pythonic")}


@pytest.mark.parametrize("family", ["hermes", "qwen", "gemma4", "pythonic"])
@pytest.mark.parametrize("label", WEAKER)
def test_what_cannot_be_enforced_is_named_and_the_rest_holds(
    benches: dict[str, Bench], family: str, label: str
) -> None:
    schema, place = WEAKER[label]
    compiler = benches[family].compiler
    other = tool({"enum": ["x"]}, "other")
    settled = settle(compiler, ForcedCall((other, tool(schema))))
    assert len(settled.warnings) == 1
    assert settled.warnings[0].startswith(f"tool 'send': {place}")
    assert settled.rule.tools[0] is other
    compiler.start(settled.rule, thinks=False)
    kept = settled.rule.tools[1].parameters["properties"]["to"]
    assert {k: v for k, v in kept.items() if k == "type"} == {
        k: v for k, v in schema.items() if k == "type"
    }
    with pytest.raises(GrammarRefused, match=r"tool 'send': properties\.to\..*strict was asked"):
        settle(compiler, ForcedCall((other, tool(schema, strict=True))))


def test_the_client_gets_the_warning_and_a_grammar(benches: dict[str, Bench]) -> None:
    schema = Tagged.model_json_schema()
    job = GenerateJob("a", "x", grammar=Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))
    made = make_constraints(benches["hermes"].compiler, job, None)
    assert made.rows[0] is not None
    assert made.warnings == ("properties.tags.uniqueItems: not enforced",)
    strict = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema), strict=True)
    with pytest.raises(EngineFault, match=r"properties\.tags\.uniqueItems: strict was asked"):
        make_constraints(benches["hermes"].compiler, GenerateJob("a", "x", grammar=strict), None)


@pytest.mark.parametrize("family", ["hermes", "qwen"])
def test_the_addresses_of_zod_are_enforced_as_they_are(
    benches: dict[str, Bench], family: str
) -> None:
    bench = benches[family]
    made = tool({"type": "string", "pattern": EMAIL, "format": "email"}, strict=True)
    assert settle(bench.compiler, ForcedCall((made,))).warnings == ()
    bare = {"type": "string", "pattern": EMAIL}
    for text, good in (("a.b'c+d@x-y.org", True), (".a@x.org", False), ("a..b@x.org", False),
                       ("a.@x.org", False), ("a'@x.org", False), ("o'n@x.co", True)):  # fmt: skip
        assert bench.accepts(JsonSchema(bare), json.dumps(text)) is good, text


def test_lookarounds_are_taken_out_whole() -> None:
    assert without_lookaround(r"^(?=.{1,9}$)a(?<![)(])b(?!(x)|\))c$") == "^abc$"


# Made by zod 4.6.7's `toJSONSchema` from one object of each of its types and checks.
ZOD = json.loads((Path(__file__).parents[2] / "support" / "zod_schemas.json").read_text())
# What no grammar here knows: they are named, and the rest holds.
ZOD_WEAKER = {
    "string emoji", "string hostname", "iso duration", "regex lookahead", "regex backreference",
    "regex word boundary", "set of strings as array", "records", "any",
}  # fmt: skip


@pytest.mark.parametrize("label", ZOD)
def test_every_type_of_zod_is_enforced_or_named(benches: dict[str, Bench], label: str) -> None:
    compiler = benches["hermes"].compiler
    settled = settle(compiler, JsonSchema(ZOD[label]))
    compiler.start(settled.rule, thinks=False)
    assert bool(settled.warnings) is (label in ZOD_WEAKER), settled.warnings


@pytest.mark.parametrize("family", ["hermes", "qwen", "gemma4"])
@pytest.mark.parametrize("ref", ["List<string>", "List%3Cstring%3E"])
def test_references_by_the_names_of_types_are_followed(
    benches: dict[str, Bench], family: str, ref: str
) -> None:
    listed = {"type": "object", "properties": {"next": {"$ref": f"#/definitions/{ref}"}}}
    definitions = {"definitions": {"List<string>": listed}}
    root = {"type": "object", "properties": {"to": {"$ref": f"#/definitions/{ref}"}}}
    made = ToolSpec("send", "", {**root, **definitions}, strict=True)
    compiler = benches[family].compiler
    settled = settle(compiler, ForcedCall((made,)))
    assert settled.warnings == ()
    compiler.start(settled.rule, thinks=False)


NUMBERS = {  # the bounds of a type, as zod, pydantic and schemars write them
    "float32": {"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4e38},
    "float64": {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.797e308},
    "int64": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "uint64": {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
    "positive": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e300},
}


@pytest.mark.parametrize("label", NUMBERS)
def test_the_bounds_of_a_type_are_held_also_where_strict_was_asked(
    benches: dict[str, Bench], label: str
) -> None:
    bench = benches["hermes"]
    made = tool(NUMBERS[label], strict=True)
    assert settle(bench.compiler, ForcedCall((made,))).warnings == ()
    for text in ("7", "1300000000000000000" if "int" in label else "2.5"):
        assert bench.accepts(JsonSchema(NUMBERS[label]), text), text
    signed = label not in ("uint64", "positive")
    assert bench.accepts(JsonSchema(NUMBERS[label]), "-7") is signed


def test_a_bound_that_cannot_be_held_is_given_up_by_name(benches: dict[str, Bench]) -> None:
    huge = tool({"type": "number", "minimum": 1e30})
    warned = settle(benches["hermes"].compiler, ForcedCall((huge,))).warnings
    assert warned == ("tool 'send': properties.to.minimum: not enforced",)


def test_what_is_no_schema_is_still_refused(benches: dict[str, Bench]) -> None:
    for schema in ({"type": "string", "enum": []}, {"type": "nothing"}):
        with pytest.raises(GrammarRefused):
            settle(benches["qwen"].compiler, ForcedCall((tool(schema),)))


def real_schemas(count: int) -> dict[str, dict[str, object]]:
    """Of the models that anthropic's SDK ships: references, unions and recursion as they come."""
    found: dict[str, dict[str, object]] = {}
    for info in pkgutil.walk_packages(anthropic.types.__path__, "anthropic.types."):
        module = importlib.import_module(info.name)
        for name, made in vars(module).items():
            own = inspect.isclass(made) and made.__module__ == info.name
            if own and issubclass(made, BaseModel):
                found[f"{info.name}.{name}"] = made.model_json_schema()
    names = random.Random(3).sample(sorted(found), count)
    return {name: found[name] for name in names}


@pytest.mark.slow
def test_real_schemas_are_enforced_or_loosened_in_time(benches: dict[str, Bench]) -> None:
    for name, schema in real_schemas(400).items():
        for family, bench in benches.items():
            began = time.monotonic()
            settled = settle(bench.compiler, ForcedCall((ToolSpec("look", "", schema),)))
            assert time.monotonic() - began < 20, (name, family)
            bench.compiler.start(settled.rule, thinks=False)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"$ref": "#"}, "'#'"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "'#/$defs/a'"),
        (
            {
                "$ref": "#/$defs/a~1b",
                "$defs": {"a/b": {"$ref": "#/$defs/c"}, "c": {"$ref": "#/$defs/a~1b"}},
            },
            "'#/$defs/a~1b'",
        ),
    ],
)
def test_a_reference_that_leads_to_itself_is_refused_by_name(schema, named: str) -> None:
    bench = Bench()
    job = GenerateJob("a", "hi", grammar=Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))
    with pytest.raises(EngineFault, match="leads to nothing but itself") as caught:
        make_constraints(bench.compiler, job, None)
    assert named in caught.value.message
    assert caught.value.param == "response_format"


def test_schemas_that_nest_in_themselves_are_no_circle() -> None:
    tree = {"type": "object", "properties": {"below": {"type": "array", "items": {"$ref": "#"}}}}
    assert circle(tree) is None


NEXT = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
ENDLESS = {  # a schema, and what can be given up so that its values end
    "itself": (NEXT, "required (next)"),
    "no type": ({k: v for k, v in NEXT.items() if k != "type"}, "required (next)"),
    "two": (
        {
            "$ref": "#/$defs/a",
            "$defs": {
                "a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}},
                      "required": ["b"]},
                "b": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}},
                      "required": ["a"]},
            },
        },
        "$defs.a.required (b)",
    ),
    "items": ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "minItems"),
    "first item": (
        {"type": "array", "prefixItems": [{"type": "null"}, {"$ref": "#"}], "minItems": 2},
        "minItems",
    ),
    "choice": (
        {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/a"}],
         "$defs": {"a": {**NEXT, "properties": {"next": {"$ref": "#/$defs/a"}}}}},
        "$defs.a.required (next)",
    ),
    "each choice": (
        {"type": "object", "required": ["x"],
         "properties": {"x": {"anyOf": [{"$ref": "#"}, NEXT]}}},
        "required (x)",
    ),
    "optional member": (
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}},
         "$defs": {"a": {**NEXT, "properties": {"next": {"$ref": "#/$defs/a"}}}}},
        "$defs.a.required (next)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDLESS)
def test_a_schema_whose_values_never_end_is_loosened_by_name(case: str) -> None:
    schema, lost = ENDLESS[case]
    bench = Bench()
    with pytest.raises(GrammarRefused, match="ever ends: each has to hold another one"):
        bench.compiler.start(JsonSchema(schema))
    settled = settle(bench.compiler, JsonSchema(schema))
    assert lost in " ".join(settled.warnings)
    shortest = {"choice": '"x"', "items": "[]", "first item": "[]"}.get(case, "{}")
    assert bench.accepts(settled.rule, shortest)
    with pytest.raises(GrammarRefused, match="strict was asked for"):
        settle(bench.compiler, JsonSchema(schema, strict=True))


@pytest.mark.parametrize("family", ["hermes", "qwen", "gemma4", "pythonic"])
def test_so_are_the_calls_of_every_family(benches: dict[str, Bench], family: str) -> None:
    below = {**NEXT, "properties": {"next": {"$ref": "#/$defs/a"}}}
    schema = {"type": "object", "properties": {"to": {"$ref": "#/$defs/a"}}, "required": ["to"],
              "$defs": {"a": below}}  # fmt: skip
    compiler = benches[family].compiler
    settled = settle(compiler, ForcedCall((ToolSpec("send", "", schema, False),)))
    assert "tool 'send': " in settled.warnings[0]
    assert "required" in settled.warnings[0]
    with pytest.raises(GrammarRefused, match=r"tool 'send'.*strict was asked for"):
        settle(compiler, ForcedCall((ToolSpec("send", "", schema, True),)))
    free = AnswerOrCalls(JsonSchema({"type": "string"}), (ToolSpec("send", "", schema, False),))
    compiler.start(free)


def test_schemas_that_may_end_are_held_as_they_are() -> None:
    bench = Bench()
    node = {"type": "object", "properties": {"value": {"type": "null"}}, "required": ["value"]}
    tree = {**node, "properties": {**node["properties"], "below": {"$ref": "#"}}}
    either = {**NEXT, "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
    unused = {
        "type": "string",
        "$defs": {"a": {**NEXT, "properties": {"next": {"$ref": "#/$defs/a"}}}},
    }
    many = {"type": "array", "items": {"$ref": "#"}}
    typed = {**NEXT, "type": ["object", "null"]}
    for schema in (tree, either, unused, many, typed):
        assert settle(bench.compiler, JsonSchema(schema)).warnings == ()


def test_a_chain_of_thousands_is_looked_through_in_no_time() -> None:
    links = {f"a{i}": {**NEXT, "properties": {"next": {"$ref": f"#/$defs/a{i + 1}"}}}
             for i in range(3000)}  # fmt: skip
    for last, endless in (({"type": "string"}, ""), ({"$ref": "#/$defs/a0"}, "#")):
        schema = {"$ref": "#/$defs/a0", "$defs": {**links, "a3000": last}}
        began = time.process_time()
        assert Ends(schema).endless == endless
        assert time.process_time() - began < 1
