"""Settle: the rule that can be enforced in place of one whose schemas cannot, and what it lost.

A schema that must hold (`strict`) is refused instead, by tool, place, keyword and pattern.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from swiftlm_engine.grammar.constraint import (
    AnswerOrCalls,
    ConstraintCompiler,
    ForcedCall,
    GrammarRefused,
    JsonSchema,
    Rule,
    StrictCalls,
)
from swiftlm_engine.grammar.lark import TOO_LARGE, Schema
from swiftlm_engine.grammar.loosen import MAX_SHOWN, Loosened, circle, loosened
from swiftlm_engine.text.chat import ToolSpec

Refusal = Callable[[Schema], str | None]


@dataclass(frozen=True, slots=True)
class SettledRule:
    rule: Rule
    warnings: tuple[str, ...]


def settle(compiler: ConstraintCompiler, rule: Rule) -> SettledRule:
    """Raises GrammarRefused where too little of a schema is left, or it must hold."""
    if isinstance(rule, JsonSchema):
        found, warnings = _answer(compiler, rule)
        return SettledRule(found, warnings)
    if isinstance(rule, AnswerOrCalls) and isinstance(rule.answer, JsonSchema):
        found, warnings = _answer(compiler, rule.answer)
        return SettledRule(replace(rule, answer=found), warnings)
    if isinstance(rule, ForcedCall | StrictCalls):
        settled = [_tool(compiler, tool) for tool in rule.tools]
        tools = tuple(tool for tool, _ in settled)
        lost = tuple(warning for _, warnings in settled for warning in warnings)
        return SettledRule(replace(rule, tools=tools), lost)
    return SettledRule(rule, ())


def _answer(compiler: ConstraintCompiler, rule: JsonSchema) -> tuple[JsonSchema, tuple[str, ...]]:
    def refusal(schema: Schema) -> str | None:
        return _refusal(compiler, JsonSchema(schema))

    found = _loosened(rule.schema, refusal(rule.schema), refusal, "", rule.strict)
    warnings = (f"{found.places}: not enforced",) if found.given_up else ()
    return replace(rule, schema=found.schema), warnings


def _tool(compiler: ConstraintCompiler, tool: ToolSpec) -> tuple[ToolSpec, tuple[str, ...]]:
    def refusal(schema: Schema) -> str | None:
        return _refusal(compiler, ForcedCall((replace(tool, parameters=schema),)))

    parameters = tool.parameters or {}
    where = f"tool '{tool.name}': "
    reason = refusal(parameters)
    if reason is not None and TOO_LARGE in reason and not tool.strict:
        lost = f"{where}its schema is too large for the calls of this model: not enforced"
        return replace(tool, parameters=None), (lost,)
    found = _loosened(parameters, reason, refusal, where, tool.strict)
    if not found.given_up:
        return tool, ()
    return replace(tool, parameters=found.schema), (f"{where}{found.places}: not enforced",)


def _loosened(
    schema: Schema, reason: str | None, refusal: Refusal, where: str, strict: bool
) -> Loosened:
    if reason is None:
        return Loosened(schema, ())
    if (ref := circle(schema)) is not None:
        raise GrammarRefused(
            f"{where}the reference '{ref[:MAX_SHOWN]}' leads to nothing but itself"
        )
    found = loosened(schema, refusal)
    if found is None:
        raise GrammarRefused(reason if where.strip() in reason else f"{where}{reason}")
    if strict:
        raise GrammarRefused(
            f"{where}{found.places}: strict was asked for, and this cannot be enforced. "
            "Take it out, or do without strict"
        )
    return found


def _refusal(compiler: ConstraintCompiler, rule: Rule) -> str | None:
    try:
        compiler.start(rule, thinks=False)
    except GrammarRefused as error:
        return str(error)
    return None
