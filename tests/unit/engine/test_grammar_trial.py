"""Promise of trials: what would end or stop the native compiler costs one request, no engine."""

import gc
import json
import os
import signal
import subprocess
import time

import pytest
from grammar_bench import Bench

from swiftlm_engine.grammar.constraint import (
    ConstraintChoice,
    ForcedCall,
    GrammarRefused,
    JsonSchema,
    Lark,
    Regex,
    Rule,
)
from swiftlm_engine.grammar.trial import Trial
from swiftlm_engine.text.chat import ToolSpec


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


def chain(length: int, key: str = "properties") -> dict[str, object]:
    """Definitions that refer to one another, one after the other: no nesting in the text."""

    def link(i: int) -> dict[str, object]:
        ref = {"$ref": f"#/$defs/a{i + 1}"}
        return {"type": "object", "properties": {"x": ref}} if key == "properties" else {key: [ref]}

    links = {f"a{i}": link(i) for i in range(length)}
    return {"$defs": {**links, f"a{length}": {"type": "string"}}, "$ref": "#/$defs/a0"}


def nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


def lark_chain(name: str, length: int = 20_000) -> str:
    links = [f'{name}{i}: {name}{i + 1} "b"' for i in range(length)]
    return "\n".join([f"start: {name}0", *links, f'{name}{length}: "a"'])


HARMFUL: dict[str, Rule] = {
    "definitions": JsonSchema(chain(3000)),
    "all of": JsonSchema(chain(3000, "allOf")),
    "any of": JsonSchema(chain(3000, "anyOf")),
    "schema in Lark": Lark("start: a\na: %json " + json.dumps(chain(3000))),
    "rules": Lark(lark_chain("a")),
    "terminals": Lark(lark_chain("A")),
    "nested": JsonSchema(nested(900)),
    "call": ForcedCall((ToolSpec("f", "", chain(3000), strict=True),)),
    "size": ConstraintChoice(tuple(f"{i:0100}" for i in range(60_000))),
    "groups": Regex("(" * 5000 + "a" + ")" * 5000),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_harmful_grammar_is_refused_and_the_next_one_works(bench: Bench, name: str) -> None:
    began = time.monotonic()
    with pytest.raises(GrammarRefused) as refused:
        bench.compiler.start(HARMFUL[name], thinks=False)
    assert time.monotonic() - began < 15
    assert len(str(refused.value)) < 400
    assert bench.accepts(Regex("[a-z]+"), "abc")


def test_a_chain_of_a_useful_length_is_held(bench: Bench) -> None:
    assert bench.accepts(JsonSchema(chain(30)), '{"x":' * 30 + '"a"' + "}" * 30)


def test_control_tokens_are_known_to_the_trial(bench: Bench) -> None:
    """An unknown token would end the trial before the part that does harm."""
    before = f"start: <[{bench.size - 60}]> a\na: %json "
    with pytest.raises(GrammarRefused, match="too deep"):
        bench.compiler.start(Lark(before + json.dumps(chain(3000))), thinks=False)


def only_process(trial: Trial) -> subprocess.Popen[bytes]:
    ((_, child),) = trial.children._idle
    return child.process


def test_a_grammar_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swiftlm_engine.grammar.trial.DEADLINE_S", 0.3)
    trial = Trial(300, {}, [0])
    grammar = json.dumps({"grammars": [{"lark_grammar": 'start: "a"'}]})
    trial.check(grammar)
    process = only_process(trial)
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(ValueError, match="takes longer"):
        trial.check(grammar)
    assert process.returncode is not None
    trial.check(grammar)


def test_the_process_ends_with_its_trial() -> None:
    trial = Trial(300, {}, [0])
    trial.check(json.dumps({"grammars": [{"lark_grammar": 'start: "a"'}]}))
    process = only_process(trial)
    del trial
    gc.collect()
    assert process.returncode is not None
