"""Constraint: which tokens may come next, so that the answer follows a grammar.

The grammar governs the answer, not the thoughts: it starts behind them, at a token boundary. A
grammar is compiled once and copied per sequence; a mask costs well under a millisecond.
"""

import json
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from swiftlm_engine.grammar.call_grammar import (
    CallSyntax,
    calls,
    forced_calls,
    json_arguments,
    syntax_of,
)
from swiftlm_engine.grammar.endless import Ends
from swiftlm_engine.grammar.lark import ANY_TEXT, GrammarBuilder, Schema
from swiftlm_engine.grammar.raw_strings import slashed
from swiftlm_engine.grammar.tagged_grammar import ANY_OBJECT
from swiftlm_engine.grammar.trial import Trial, TrialFailed
from swiftlm_engine.grammar.trial_compiler import LIMITS
from swiftlm_engine.isolation.work import current
from swiftlm_engine.text.answer_format import AnswerFormat
from swiftlm_engine.text.chat import ToolSpec
from swiftlm_engine.text.detokenizer import TokenTexts, bare, special_tokens
from swiftlm_engine.text.markers import unmarked
from swiftlm_engine.text.reasoning import ThinkTags
from swiftlm_engine.text.tools.schema import CannotHold

MAX_GRAMMARS = 64
MAX_REFERENCE = 60  # characters of one in a refusal
MAX_REASON = 300  # characters of a refusal; some repeat the whole grammar
KEPT_TAIL = 512  # characters in which a marker is looked for; a token is shorter
HARMONY_TRIGGER = "<|channel|>commentary to=functions."
Mask = NDArray[np.int32]  # one bit per token, (ceil(vocabulary / 32),)


class GrammarRefused(ValueError):
    """The grammar or schema cannot be enforced; the caller must change it."""


@dataclass(frozen=True, slots=True)
class JsonObject:
    pass


@dataclass(frozen=True, slots=True)
class JsonSchema:
    schema: Schema
    strict: bool = False  # refused rather than held in part


@dataclass(frozen=True, slots=True)
class Regex:
    pattern: str


@dataclass(frozen=True, slots=True)
class Lark:
    grammar: str


@dataclass(frozen=True, slots=True)
class ConstraintChoice:
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForcedCall:
    """The answer is a call of one of these tools, in the family's own way of writing it."""

    tools: tuple[ToolSpec, ...]
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class StrictCalls:
    """The answer is free, but a call in it follows its tool's schema."""

    tools: tuple[ToolSpec, ...]


@dataclass(frozen=True, slots=True)
class AnswerOrCalls:
    """Either an answer by its rule, or calls of these tools in its place."""

    answer: "JsonObject | JsonSchema | Regex | Lark | ConstraintChoice"
    tools: tuple[ToolSpec, ...]
    parallel: bool = True


AnswerRule = JsonObject | JsonSchema | Regex | Lark | ConstraintChoice
Rule = AnswerRule | ForcedCall | StrictCalls | AnswerOrCalls


class Constraint:
    """One sequence. Call `mask` before each token is sampled and `advance` with each that was."""

    def __init__(
        self,
        matcher: LLMatcher,
        words: int,
        thoughts: "Prelude | None",
        behind_thoughts: LLMatcher | None = None,  # in place of `matcher` where there were any
    ) -> None:
        self._matcher = matcher
        self._words = words  # of a mask that the vocabulary fills; logits are often wider
        self._thoughts = thoughts
        self._behind_thoughts = behind_thoughts

    @property
    def is_done(self) -> bool:
        """The grammar is complete and allows nothing but the end."""
        return bool(self._matcher.is_stopped())

    @property
    def error(self) -> str:
        """Why the grammar gave up, past what it could check; empty while it works."""
        return str(self._matcher.get_error())

    def mask(self, into: Mask) -> bool:
        """Fills the row with the tokens that may come next; False when all may."""
        if self._thoughts is not None and self._thoughts.free:
            return False
        into[self._words :] = 0
        self._matcher.unsafe_compute_mask_ptr(into.ctypes.data, self._words * into.itemsize)
        if self._thoughts is not None:
            for token_id in self._thoughts.opener_ids:
                into[token_id >> 5] |= np.int32(np.uint32(1 << (token_id & 31)).view(np.int32))
        return True

    def advance(self, token_id: int) -> None:
        if self._thoughts is not None:
            if self._thoughts.takes(token_id):
                if not self._thoughts.free and self._behind_thoughts is not None:
                    self._matcher = self._behind_thoughts
                return
            if not self._thoughts.free:
                self._thoughts = None
        self._matcher.consume_token(token_id)


class StrictCallsConstraint(Constraint):
    """Free until the marker of a call; then the grammar until the calls are over.

    A family that marks no calls is left free.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        words: int,
        thoughts: "Prelude | None",
        texts: TokenTexts,
        trigger: str,
    ) -> None:
        super().__init__(matcher, words, thoughts)
        self._fresh = matcher.deep_copy()
        self._detokenizer = texts.start()
        self._trigger = trigger
        self._tail = ""
        self._in_call = False

    @property
    def is_done(self) -> bool:
        return False

    def mask(self, into: Mask) -> bool:
        return self._in_call and super().mask(into)

    def advance(self, token_id: int) -> None:
        if self._thoughts is not None and self._thoughts.takes(token_id):
            return
        if self._in_call:
            self._matcher.consume_token(token_id)
            self._in_call = not self._matcher.is_stopped()
            return
        self._tail = (self._tail + self._detokenizer.push(token_id))[-KEPT_TAIL:]
        if self._trigger and self._tail.endswith(self._trigger):
            self._tail = ""
            self._matcher = self._fresh.deep_copy()
            self._in_call = True


class Prelude:
    """The thoughts before the grammar: open from the start, or opened by the first token."""

    def __init__(
        self, texts: TokenTexts, inside: ThinkTags | None, openers: Mapping[int, ThinkTags]
    ) -> None:
        self._detokenizer = texts.start()
        self._inside = inside
        self._openers = openers
        self._tail = ""

    @property
    def free(self) -> bool:
        return self._inside is not None

    @property
    def opener_ids(self) -> Collection[int]:
        return self._openers if not self.free else ()

    def takes(self, token_id: int) -> bool:
        """Whether the token belongs to the thoughts."""
        if self._inside is None:
            self._inside, self._openers = self._openers.get(token_id), {}
            return self._inside is not None
        closer = self._inside.closer
        self._tail = (self._tail + self._detokenizer.push(token_id))[-KEPT_TAIL:]
        if closer in self._tail:
            self._inside = None
        return True


class ConstraintCompiler:
    """One model. `warm` builds what takes seconds; it may run on another thread."""

    def __init__(
        self,
        tokenizer: Any,  # of transformers, bare or wrapped by mlx-lm
        texts: TokenTexts,
        answer_format: AnswerFormat,
        template: str,
        vocab_size: int,
        eos_ids: Collection[int],
    ) -> None:
        self._tokenizer = bare(tokenizer)
        self._texts = texts
        self._format = answer_format
        self._template = template
        self._vocab_size = vocab_size  # the width of the logits
        self._eos_ids = sorted(eos_ids)
        special = special_tokens(self._tokenizer)
        self._control_ids = {text: i for i, text in special.items()}
        self._vocabulary: Mapping[str, int] = self._tokenizer.get_vocab()
        self._trial = Trial(vocab_size, special, self._eos_ids)
        self._lock = Lock()  # guards the two fields below
        self._tokens: LLTokenizer | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    @property
    def _words(self) -> int:
        self.warm()
        return (self._tokens.vocab_size + 31) // 32 if self._tokens else 0

    @property
    def mask_width(self) -> int:
        return (self._vocab_size + 31) // 32

    def warm(self) -> None:
        with self._lock:
            if self._tokens is None:
                wrapper = _Vocabulary(self._tokenizer, self._texts, self._vocab_size, self._eos_ids)
                self._tokens = LLTokenizer(
                    TokenizerWrapper(wrapper), n_vocab=self._vocab_size, eos_token=self._eos_ids
                )

    def start(self, rule: Rule, opening: str = "", thinks: bool = True) -> Constraint:
        """The constraint of one sequence; `opening` is what the prompt has written of the answer.

        Raises GrammarRefused.
        """
        try:
            return self._start(rule, opening, thinks)
        except (TrialFailed, RecursionError) as error:
            raise GrammarRefused(_too_deep(error)) from error
        except (CannotHold, GrammarRefused) as error:
            refusal = GrammarRefused(str(error))
            if not isinstance(rule, AnswerOrCalls) or all(tool.strict for tool in rule.tools):
                raise refusal from error
        # Nobody asked that the arguments of these calls follow their schemas.
        free = tuple(t if t.strict else replace(t, parameters=None) for t in rule.tools)
        try:
            return self._start(replace(rule, tools=free), opening, thinks)
        except (TrialFailed, RecursionError) as error:
            raise GrammarRefused(_too_deep(error)) from error
        except (CannotHold, GrammarRefused) as error:
            raise refusal from error

    def _start(self, rule: Rule, opening: str, thinks: bool) -> Constraint:
        _refuse_endless(rule)
        thoughts = self._prelude(opening, thinks)
        if isinstance(rule, StrictCalls):
            return self._strict_calls(rule, thoughts)
        builder = GrammarBuilder(self._control_ids)
        if self._format.harmony:
            grammar = builder.build(_harmony(builder, rule))
            return Constraint(self._matcher(grammar), self._words, None)
        answer = self._answer(builder, rule, opening)
        # Behind thoughts, models are used to an empty line.
        behind = builder.build(rf"/\n{{0,2}}/ {answer}")
        if thoughts is not None and thoughts.free:
            return Constraint(self._matcher(behind), self._words, thoughts)
        plain = self._matcher(builder.build(answer))
        later = self._matcher(behind) if thoughts is not None else None
        return Constraint(plain, self._words, thoughts, later)

    def _strict_calls(self, rule: StrictCalls, thoughts: Prelude | None) -> Constraint:
        builder = GrammarBuilder(self._control_ids)
        if self._format.harmony:
            trigger = HARMONY_TRIGGER
            grammar = _harmony_calls(builder, rule.tools)
        else:
            trigger = self._syntax.trigger
            grammar = calls(builder, self._syntax, rule.tools, parallel=True)
        matcher = self._matcher(builder.build(grammar))
        marked = self._format.mark(trigger)
        return StrictCallsConstraint(matcher, self._words, thoughts, self._texts, marked)

    def _answer(self, builder: GrammarBuilder, rule: Rule, opening: str) -> str:
        if isinstance(rule, ForcedCall):
            return forced_calls(builder, self._syntax, rule.tools, rule.parallel)
        if isinstance(rule, AnswerOrCalls):
            called = forced_calls(builder, self._syntax, rule.tools, rule.parallel)
            return f"({self._answer(builder, rule.answer, opening)} | {called})"
        body = _body(builder, rule)
        if self._format.family.name == "kimi_k3" and "<|open|>response<|sep|>" not in opening:
            return f"{builder.literal('<|open|>response<|sep|>')} {body}"
        return body

    @property
    def _syntax(self) -> CallSyntax:
        known = self._format
        return syntax_of(known.call_family, self._template, self._vocabulary, known.family.suffix)

    def _prelude(self, opening: str, thinks: bool) -> Prelude | None:
        if self._format.harmony:
            return None  # thoughts are a message like others, and part of the grammar
        inside = self._format.opened(opening)
        if inside is not None:
            return Prelude(self._texts, inside, {})
        closed = any(unmarked(tags.closer) in opening for tags in self._format.tags)
        if closed or not thinks or not self._format.reasons:
            return None
        openers = {}
        for tags in self._format.tags:
            token_id = self._vocabulary.get(unmarked(tags.opener))
            if token_id is not None and unmarked(tags.opener) in self._template:
                openers[token_id] = tags
        return Prelude(self._texts, None, openers) if openers else None

    def _matcher(self, grammar: str) -> LLMatcher:
        self.warm()
        with self._lock:
            compiled = self._compiled.get(grammar)
        if compiled is None or not _works(compiled):
            compiled = self._compile(grammar)
        with self._lock:
            self._compiled[grammar] = compiled
            self._compiled.move_to_end(grammar)
            if len(self._compiled) > MAX_GRAMMARS:
                self._compiled.popitem(last=False)
        return compiled.deep_copy()

    def _compile(self, grammar: str) -> LLMatcher:
        """Seconds at worst, in which other requests go on."""
        self._trial.check(grammar)
        with current().waiting():
            compiled = LLMatcher(self._tokens, grammar, limits=LIMITS)
            if compiled.is_error() or not _works(compiled):
                raise GrammarRefused(_first_line(compiled.get_error()))
        return compiled


def _refuse_endless(rule: Rule) -> None:
    if isinstance(rule, AnswerOrCalls):
        _refuse_endless(rule.answer)
    schemas = [rule.schema] if isinstance(rule, JsonSchema) else []
    if isinstance(rule, ForcedCall | StrictCalls | AnswerOrCalls):
        schemas = [tool.parameters for tool in rule.tools if tool.parameters]
    for ref in filter(None, (Ends(schema).endless for schema in schemas)):
        raise CannotHold(
            f"no value of '{ref[:MAX_REFERENCE]}' ever ends: each has to hold another one"
        )


def _too_deep(error: Exception) -> str:
    if isinstance(error, TrialFailed):
        return str(error)
    return "the grammar or schema is nested too deep. Make it smaller"


def _works(compiled: LLMatcher) -> bool:
    """Copies share their states: where one ran into a limit, none goes on."""
    copy = compiled.deep_copy()
    copy.compute_bitmask()
    return not copy.is_error()


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    bos_token_id = None

    def __init__(
        self, tokenizer: Any, texts: TokenTexts, vocab_size: int, eos_ids: list[int]
    ) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_ids[0] if eos_ids else 0
        special = special_tokens(tokenizer)
        self.special_token_ids = list(special)
        size = min(vocab_size, len(tokenizer))
        self.tokens = [
            special[i].encode() if i in special else texts.bytes_of(i) for i in range(size)
        ]

    def __call__(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def _body(builder: GrammarBuilder, rule: Rule) -> str:
    match rule:
        case JsonObject():
            return builder.schema(ANY_OBJECT)
        case JsonSchema(schema=schema):
            return builder.schema(schema)
        case Regex(pattern=pattern):
            return builder.terminal(f"/{slashed(pattern)}/")
        case Lark(grammar=grammar):
            return builder.lark(grammar)
        case ConstraintChoice(values=values):
            return "(" + " | ".join(json.dumps(value) for value in values) + ")"
    raise TypeError(f"no grammar for {type(rule).__name__}")


def _harmony(builder: GrammarBuilder, rule: Rule) -> str:
    """Thoughts on their channel, if any; then the one message that the rule asks for."""
    channel, message = builder.literal("<|channel|>"), builder.literal("<|message|>")
    thoughts = (
        f'({channel} "analysis" {message} {builder.terminal(ANY_TEXT)} '
        f'{builder.literal("<|end|><|start|>")} "assistant")?'
    )
    if isinstance(rule, ForcedCall | AnswerOrCalls):
        trigger = builder.literal(HARMONY_TRIGGER)
        called = f"{trigger} {_harmony_calls(builder, rule.tools)}"
    if isinstance(rule, ForcedCall):
        return f"{thoughts} {called}"
    answer = rule.answer if isinstance(rule, AnswerOrCalls) else rule
    said = f'{channel} "final" {message} {_body(builder, answer)}'
    return f"{thoughts} ({said} | {called})" if answer is not rule else f"{thoughts} {said}"


def _harmony_calls(builder: GrammarBuilder, tools: Sequence[ToolSpec]) -> str:
    """What follows the trigger: the name, and the arguments as the message's body."""
    head = builder.literal("<|constrain|>json<|message|>")
    written = [
        f'{json.dumps(tool.name)} " "? {head} {json_arguments(builder, tool)}' for tool in tools
    ]
    return f"({' | '.join(written)})"


def _first_line(error: str) -> str:
    line = next(iter(error.strip().splitlines()), "")
    if not line or line.startswith("panic"):  # of the native library: nothing a client can act on
        return "the grammar or schema cannot be compiled"
    return line if len(line) <= MAX_REASON else f"{line[:MAX_REASON]}…"
