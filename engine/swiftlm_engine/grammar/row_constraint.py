"""Which grammar a request needs, and how a row obeys it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from swiftlm_engine.grammar.constraint import (
    AnswerOrCalls,
    AnswerRule,
    Constraint,
    ConstraintChoice,
    ConstraintCompiler,
    ForcedCall,
    GrammarRefused,
    JsonObject,
    JsonSchema,
    Lark,
    Regex,
    Rule,
    StrictCalls,
)
from swiftlm_engine.grammar.settle import settle
from swiftlm_engine.messages import (
    EngineFault,
    FaultKind,
    GenerateJob,
    Grammar,
    GrammarKind,
    ToolChoice,
)
from swiftlm_engine.text.chat import Chat
from swiftlm_engine.text.template import RenderedPrompt

logger = logging.getLogger(__name__)


def apply_mask(logits: mx.array, masks: NDArray[np.int32]) -> mx.array:
    """Logits with what is not allowed at minus infinity; lazy.

    `logits` (B, V); `masks` (B, ceil(V / 32)), one bit per token, lowest bit first.
    """
    words = mx.array(masks).view(mx.uint32)  # (B, W)
    bits = (words[:, :, None] >> mx.arange(32, dtype=mx.uint32)) & 1  # (B, W, 32)
    allowed = bits.reshape(words.shape[0], -1)[:, : logits.shape[-1]]  # (B, V)
    return mx.where(allowed == 1, logits, -mx.inf)


class RowConstraint:
    """One row's grammar. `advance` with every token that is read, `apply` before each draw."""

    def __init__(self, constraint: Constraint, mask_width: int) -> None:
        self._constraint = constraint
        self._mask = np.zeros(mask_width, dtype=np.int32)
        self._gave_up = False

    @property
    def is_done(self) -> bool:
        return self._constraint.is_done

    def advance(self, token_id: int) -> None:
        if not self._constraint.is_done:
            self._constraint.advance(token_id)
        if not self._gave_up and (error := self._constraint.error):
            self._gave_up = True
            logger.error("a grammar gave up, so its answer ends here: %s", error.splitlines()[0])

    def apply(self, logits: mx.array) -> mx.array:
        """Logits (1, V) with all tokens forbidden that the grammar cannot take next; lazy."""
        if not self._constraint.mask(self._mask):
            return logits
        return apply_mask(logits, self._mask[None])


@dataclass(frozen=True, slots=True)
class MadeConstraints:
    """One for each choice, and what of the schemas they do not enforce."""

    rows: tuple[RowConstraint | None, ...]
    warnings: tuple[str, ...] = ()


def make_constraints(
    compiler: ConstraintCompiler, job: GenerateJob, prompt: RenderedPrompt | None
) -> MadeConstraints:
    """Raises `EngineFault(INVALID)` for a grammar that cannot be enforced.

    On the tokenizer thread: compiling takes milliseconds, and decoding clients must not wait.
    """
    rule = _rule(job)
    if rule is None:
        return MadeConstraints((None,) * job.n)
    opening = prompt.opening if prompt is not None else ""
    # Text that is not a conversation, or is shown as it comes, has no thoughts apart from it.
    chat = job.prompt if isinstance(job.prompt, Chat) and not job.raw_text else None
    thinks = chat is not None and chat.enable_thinking is not False
    try:
        start, warnings = _started(compiler, rule, opening, thinks)
    except GrammarRefused as error:
        param = "response_format" if job.grammar is not None else "tools"
        message = f"this grammar cannot be enforced: {error}"
        raise EngineFault(FaultKind.INVALID, message, param=param) from error
    started = [start() for _ in range(job.n)]
    return MadeConstraints(
        tuple(RowConstraint(one, compiler.mask_width) for one in started), warnings
    )


def _started(
    compiler: ConstraintCompiler, rule: Rule, opening: str, thinks: bool
) -> tuple[Callable[[], Constraint], tuple[str, ...]]:
    """How to start the rule, or what can be enforced of it. Raises GrammarRefused."""
    try:
        compiler.start(rule, opening, thinks)
    except GrammarRefused:
        settled = settle(compiler, rule)
        if not settled.warnings:
            raise
        compiler.start(settled.rule, opening, thinks)
        return partial(compiler.start, settled.rule, opening, thinks), settled.warnings
    return partial(compiler.start, rule, opening, thinks), ()


def _rule(job: GenerateJob) -> Rule | None:
    tools = job.prompt.tools if isinstance(job.prompt, Chat) else ()
    if job.tool_choice is ToolChoice.NAMED:
        named = tuple(tool for tool in tools if tool.name == job.tool_name)
        if not named:
            message = f"tool_choice names '{job.tool_name}', which is not among the tools"
            raise EngineFault(FaultKind.INVALID, message, param="tool_choice")
        return ForcedCall(named, parallel=False)
    if job.tool_choice is ToolChoice.REQUIRED:
        if not tools:
            message = "tool_choice is required, but there are no tools"
            raise EngineFault(FaultKind.INVALID, message, param="tool_choice")
        return ForcedCall(tools, job.parallel_tool_calls)
    if job.grammar is not None:
        answer = _answer_rule(job.grammar)
        may_call = tools and job.tool_choice is ToolChoice.AUTO and not job.raw_text
        return AnswerOrCalls(answer, tools, job.parallel_tool_calls) if may_call else answer
    strict = tuple(tool for tool in tools if tool.strict)
    return StrictCalls(strict) if strict and len(strict) == len(tools) else None


def _answer_rule(grammar: Grammar) -> AnswerRule:
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            return JsonObject()
        case GrammarKind.JSON_SCHEMA:
            return JsonSchema(_schema(grammar.text), grammar.strict)
        case GrammarKind.REGEX:
            return Regex(grammar.text)
        case GrammarKind.LARK:
            return Lark(grammar.text)
        case GrammarKind.CHOICE:
            return ConstraintChoice(grammar.choices)


def _schema(text: str) -> dict[str, Any]:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"the JSON schema is not JSON: {error}"
        raise EngineFault(FaultKind.INVALID, message, param="response_format") from error
    if not isinstance(schema, dict):
        message = "the JSON schema must be an object"
        raise EngineFault(FaultKind.INVALID, message, param="response_format")
    return schema
