"""Promises of constraints: what is allowed validates, calls of every family read back, in time."""

import json
import time

import numpy as np
import pytest
from grammar_bench import CALLS, TOOLS, Bench, bench_of
from parser_fixtures import Answer

from swiftlm_engine.grammar.call_grammar import syntax_of
from swiftlm_engine.grammar.constraint import (
    AnswerOrCalls,
    ConstraintChoice,
    ForcedCall,
    GrammarRefused,
    JsonObject,
    JsonSchema,
    Lark,
    Regex,
    Rule,
    StrictCalls,
)
from swiftlm_engine.session.open_session import HARMONY_END
from swiftlm_engine.text.chat import ToolSpec
from swiftlm_engine.text.events import TextFinish
from swiftlm_engine.text.output_parser import OutputOptions, OutputParser, ToolMode

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


def test_every_text_of_a_schema_validates(bench: Bench) -> None:
    for seed in range(40):
        value = json.loads(bench.sample(JsonSchema(PERSON), seed))
        assert set(value) <= set(PERSON["properties"])
        assert len(value["name"]) <= 12
        assert 0 <= value["age"] <= 150
        assert value["kind"] in ("cat", "dog")


def test_a_text_that_breaks_the_schema_is_refused_where_it_breaks_it(bench: Bench) -> None:
    constraint = bench.compiler.start(JsonSchema(PERSON), thinks=False)
    text = '{"name": "Ann", "age": "old"}'
    assert bench.follow(constraint, text) == '{"name": "Ann", "age":'


def test_white_space_is_bounded(bench: Bench) -> None:
    assert bench.accepts(JsonSchema(PERSON), '{\n  "name": "A",\n  "age": 1,\n  "kind": "cat"\n}')
    assert not bench.accepts(JsonSchema(PERSON), '{\n\n\n"name": "A", "age": 1, "kind": "cat"}')
    assert not bench.accepts(JsonSchema(PERSON), "{" + " " * 40 + '"name": "A"')


@pytest.mark.parametrize(
    ("rule", "right", "wrong"),
    [
        (JsonObject(), '{"a": [1, {"b": null}]}', "[1]"),
        (Regex(r"[a-z]+/\d{2}"), "abc/12", "abc/1"),
        (Regex(r"a\/b[/\\]c"), "a/b\\c", r"a\/b/c"),
        (Regex("one\ntwo"), "one\ntwo", "one two"),
        (ConstraintChoice(("yes", 'no "really"')), 'no "really"', "maybe"),
        (ConstraintChoice(("a\U0001f600", "b\n/")), "a\U0001f600", "a"),
        (Lark('start: "a" B+\nB: /[0-9]/'), "a12", "b"),
    ],
)
def test_the_kinds_of_rules(bench: Bench, rule: Rule, right: str, wrong: str) -> None:
    assert bench.accepts(rule, right)
    assert not bench.accepts(rule, wrong)


@pytest.mark.parametrize(
    "rule",
    [
        Lark("start: nonsense"),
        Regex("(unclosed"),
        JsonSchema({"type": "object", "properties": {"a": {"type": "strange"}}}),
    ],
)
def test_a_rule_that_cannot_be_enforced_is_refused(bench: Bench, rule: Rule) -> None:
    with pytest.raises(GrammarRefused):
        bench.compiler.start(rule)


ANSWER = '{"name": "A", "age": 1, "kind": "cat"}'


def test_thoughts_the_prompt_opened_are_free_and_the_grammar_starts_behind_them(
    bench: Bench,
) -> None:
    opening = "<|im_start|>assistant\n<think>\n"
    rule = JsonSchema(PERSON)
    assert bench.accepts(rule, 'Hm, {"a". \n</think>\n\n' + ANSWER, opening, thinks=True)
    assert not bench.accepts(rule, "Hm.\n</think>\n\nNo." + ANSWER, opening, thinks=True)


def test_a_model_may_open_its_thoughts_itself_or_answer_at_once(bench: Bench) -> None:
    rule = JsonSchema(PERSON)
    assert bench.accepts(rule, "<think>\nHm.\n</think>\n\n" + ANSWER, thinks=True)
    assert bench.accepts(rule, ANSWER, thinks=True)
    assert not bench.accepts(rule, "<think>\nHm.\n</think>\n\n" + ANSWER, thinks=False)


def test_thoughts_the_prompt_has_closed_do_not_open_again(bench: Bench) -> None:
    opening = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    text = "<think>\nHm.\n</think>\n\n" + ANSWER
    assert not bench.accepts(JsonSchema(PERSON), text, opening, thinks=True)


def test_the_line_breaks_behind_thoughts_are_allowed_only_behind_thoughts(bench: Bench) -> None:
    assert bench.accepts(ConstraintChoice(("yes",)), "<think>Hm.</think>\n\nyes", thinks=True)
    assert bench.accepts(ConstraintChoice(("yes",)), "yes", thinks=True)
    assert not bench.accepts(ConstraintChoice(("yes",)), "\n\nyes", thinks=True)
    assert bench.accepts(ConstraintChoice(("yes",)), "Hm.</think>\n\nyes", "<think>\n", thinks=True)


def test_tools_and_a_response_schema_leave_both_possible() -> None:
    for family, (call, _) in CALLS.items():
        made = bench_of(family)
        rule = AnswerOrCalls(JsonSchema(PERSON), TOOLS)
        prefix = "<|open|>response<|sep|>" if family == "kimi_k3" else ""
        assert made.accepts(rule, prefix + ANSWER), family
        assert made.accepts(rule, call), family
        assert not made.accepts(rule, "Well, let me think."), family
        assert not made.accepts(rule, call.replace("get_weather", "get_rich")), family
    harmony = Bench("<|channel|>analysis", HARMONY, ())
    rule = AnswerOrCalls(JsonSchema(PERSON), TOOLS)
    assert harmony.accepts(rule, f"<|channel|>final<|message|>{ANSWER}")
    assert harmony.accepts(
        rule,
        "<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{}",
    )


def test_a_tool_that_cannot_be_held_does_not_take_the_answer_with_it(bench: Bench) -> None:
    odd = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a(?!b)"}}}
    rule = AnswerOrCalls(JsonSchema(PERSON), (ToolSpec("look", "", odd),))
    assert bench.accepts(rule, ANSWER)
    assert bench.accepts(rule, '<tool_call>\n{"name": "look", "arguments": {"b": 1}}\n</tool_call>')
    strict = AnswerOrCalls(JsonSchema(PERSON), (ToolSpec("look", "", odd, strict=True),))
    with pytest.raises(GrammarRefused):
        bench.compiler.start(strict)


def test_a_complete_answer_is_done(bench: Bench) -> None:
    constraint = bench.compiler.start(ConstraintChoice(("yes",)), thinks=False)
    for token_id in bench.ids("yes"):
        assert not constraint.is_done
        constraint.advance(token_id)
    assert constraint.is_done
    assert constraint.error == ""


def test_strict_calls_leave_the_answer_free_and_bind_the_call(bench: Bench) -> None:
    rule = StrictCalls(TOOLS)
    right = '{"name": "get_weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>'
    assert bench.accepts(rule, 'Well, {"x": 1}\n<tool_call>\n' + right)
    assert bench.accepts(rule, "No call at all.")
    wrong = right.replace('"days": 3', '"days": "three"')
    assert not bench.accepts(rule, "Well.\n<tool_call>\n" + wrong)


HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>")


def test_harmony_answers_on_its_final_channel_after_its_thoughts() -> None:
    harmony = Bench("<|channel|>analysis", HARMONY, ())
    thoughts = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    final = f"<|channel|>final<|message|>{ANSWER}"
    assert harmony.accepts(JsonSchema(PERSON), thoughts + final)
    assert harmony.accepts(JsonSchema(PERSON), final)
    assert not harmony.accepts(JsonSchema(PERSON), thoughts + final.replace("cat", "cow"))


def test_harmony_may_be_made_to_end_its_thoughts_before_a_forced_call() -> None:
    harmony = Bench("<|channel|>analysis", HARMONY, ())
    constraint = harmony.compiler.start(ForcedCall(TOOLS), thinks=True)
    thoughts = "<|channel|>analysis<|message|>Hm, wel"
    for token_id in harmony.ids(thoughts + HARMONY_END):
        constraint.advance(token_id)
    assert constraint.error == ""
    allowed = harmony.allowed(constraint)
    assert allowed == set(harmony.ids("<|channel|>"))


def test_harmony_calls_the_tool_that_is_forced() -> None:
    harmony = Bench("<|channel|>analysis", HARMONY, ())
    call = (
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Rome", "days": 3}'
    )
    assert harmony.accepts(ForcedCall(TOOLS), call)
    assert not harmony.accepts(ForcedCall(TOOLS), call.replace("get_weather", "get_rich"))
    assert harmony.accepts(StrictCalls(TOOLS), call)
    assert not harmony.accepts(StrictCalls(TOOLS), call.replace("3", '"3"'))


@pytest.mark.parametrize("family", CALLS)
def test_a_forced_call_in_the_familys_own_words_is_allowed_and_reads_back(family: str) -> None:
    text, _ = CALLS[family]
    made = bench_of(family)
    assert made.format.name == family
    assert made.follow(made.compiler.start(ForcedCall(TOOLS), thinks=False), text) is None
    parser = OutputParser(
        made.texts, OutputOptions(tools=TOOLS, tool_mode=ToolMode.FORCED), made.format
    )
    answer = Answer()
    for token_id in made.ids(text):
        answer.add(parser.push(token_id))
    answer.add(parser.finish(TextFinish.STOP))
    assert [(c[1], json.loads(c[2])) for c in answer.calls] == [
        ("get_weather", {"city": "Rome", "days": 3})
    ]
    assert answer.content == ""


@pytest.mark.parametrize("family", CALLS)
def test_a_forced_call_with_arguments_the_schema_forbids_is_refused(family: str) -> None:
    text, _ = CALLS[family]
    made = bench_of(family)
    assert not made.accepts(ForcedCall(TOOLS), text.replace("3", "three"))
    assert not made.accepts(ForcedCall(TOOLS), text.replace("get_weather", "get_rich"))
    assert not made.accepts(ForcedCall(TOOLS), "Let me think about it.")


def test_the_versions_of_mistral_and_deepseek_are_told_apart() -> None:
    assert syntax_of("mistral", "", {"[ARGS]": 1}).separator == "[TOOL_CALLS]"
    assert syntax_of("mistral", "", {}).separator == ", "
    old = "function<｜tool▁sep｜>"  # noqa: RUF001
    assert syntax_of("deepseek", old, {}) is not syntax_of("deepseek", "", {})


def test_only_one_call_is_allowed_where_parallel_calls_are_off(bench: Bench) -> None:
    call = CALLS["hermes"][0]
    assert bench.accepts(ForcedCall(TOOLS), f"{call}\n{call}")
    assert not bench.accepts(ForcedCall(TOOLS, parallel=False), f"{call}\n{call}")


def test_a_mask_costs_well_under_a_millisecond(bench: Bench) -> None:
    ids, spent = bench.ids(ANSWER), []
    row = np.zeros(bench.compiler.mask_width, np.int32)
    for _ in range(20):
        constraint = bench.compiler.start(JsonSchema(PERSON), thinks=False)
        for token_id in ids:
            start = time.perf_counter()
            constraint.mask(row)
            spent.append(time.perf_counter() - start)
            constraint.advance(token_id)
    assert float(np.median(spent)) < 1e-3


def test_masked_logits_keep_only_what_is_allowed(bench: Bench) -> None:
    import mlx.core as mx

    from swiftlm_engine.grammar.row_constraint import apply_mask

    rows = np.zeros((2, bench.compiler.mask_width), np.int32)
    constraint = bench.compiler.start(ConstraintChoice(("yes", "no")), thinks=False)
    constraint.mask(rows[0])
    rows[1] = -1  # everything
    logits = mx.random.normal((2, bench.size))
    masked = np.array(apply_mask(logits, rows))
    allowed = bench.allowed(bench.compiler.start(ConstraintChoice(("yes", "no")), thinks=False))
    assert set(np.flatnonzero(np.isfinite(masked[0])).tolist()) == allowed
    assert np.array_equal(masked[1], np.array(logits)[1])
