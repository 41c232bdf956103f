"""The 469 fixtures of `canitoolcall` as pieces of text that a detokeniser would give.

Their tokenizers are not here. Where it matters which markers are control tokens and which are
only spelled, the fixture's token ids tell: the ids of the control tokens are known, and the text
between two of them must be as long as the number of ordinary tokens makes likely.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

from canitoolcall.fixtures import Fixture, load_families, load_fixtures

from swiftlm_engine.text.answer_format import AnswerFormat
from swiftlm_engine.text.chat import ToolSpec
from swiftlm_engine.text.events import (
    ContentDelta,
    ReasoningDelta,
    TextEvent,
    TextFinish,
    ToolCallDelta,
    ToolCallStart,
)
from swiftlm_engine.text.markers import MARK, marked
from swiftlm_engine.text.output_parser import OutputOptions, OutputParser

# What a template of the family says; the format must be found from it or from the vocabulary.
SIGN_OF_VARIANT = {
    "qwen3-hybrid": '<think> <tool_call>\n{"name": tool_call.name',
    "qwen3-thinking-2507": '<think> <tool_call>\n{"name": tool_call.name',
    "qwen3-instruct-2507": '<tool_call>\n{"name": tool_call.name',
    "deepseek-v3": "<｜tool▁calls▁begin｜>",  # noqa: RUF001
    "deepseek-v31": "<｜tool▁calls▁begin｜>",  # noqa: RUF001
    "llama3-json": "<|python_tag|>",
}
SIGN_OF_FAMILY = {
    "qwen3-xml": "<tool_call>\n<function=",
    "deepseek": "｜DSML｜",  # noqa: RUF001
    "glm": "<tool_call> <arg_key>",
    "mistral": "[TOOL_CALLS]",
    "gpt-oss": "<|channel|>analysis<|message|>",
}
TOKENS = {  # special tokens of each vocabulary
    "gemma4": ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
    "llama4-pythonic": ("<|python_start|>", "<|python_end|>"),
    "llama3-json": ("<|python_tag|>",),
    "deepseek": (),
}
TOKENS["kimi-k2-thinking"] = TOKENS["kimi-k2-instruct"] = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
)
CONTROL_IDS = {  # where markers are also written out, by id
    "gpt-oss": {
        200002: "<|return|>",
        200003: "<|constrain|>",
        200005: "<|channel|>",
        200006: "<|start|>",
        200007: "<|end|>",
        200008: "<|message|>",
        200012: "<|call|>",
    },
    "kimi-k3-xtml": {
        163586: "<|end_of_msg|>",
        163587: "<|open|>",
        163588: "<|close|>",
        163589: "<|sep|>",
    },
    "mistral": {9: "[TOOL_CALLS]", 32: "[ARGS]", 33: "[CALL_ID]", 34: "[THINK]", 35: "[/THINK]"},
    "v3": {5: "[TOOL_CALLS]"},
    "v11-think-text": {},
}


@dataclass(frozen=True)
class Case:
    fixture: Fixture
    answer_format: AnswerFormat
    prompt_tail: str
    marked_text: str
    tools: tuple[ToolSpec, ...] = field(default=())

    @property
    def finish(self) -> TextFinish:
        return TextFinish.LENGTH if self.fixture.truncated else TextFinish.STOP


class PieceTexts:
    """Stands in for the detokeniser: token n is piece n."""

    special_texts: frozenset[str] = frozenset()

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces

    def start(self) -> "PieceTexts":
        return self

    def push(self, token_id: int) -> str:
        return self.pieces[token_id]

    def flush(self, *, cut: bool = False) -> str:
        return ""


@dataclass
class Answer:
    content: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)  # [id, name, arguments]

    def add(self, events: Iterable[TextEvent]) -> None:
        for event in events:
            match event:
                case ContentDelta(text=text):
                    self.content += text
                case ReasoningDelta(text=text):
                    self.reasoning += text
                case ToolCallStart(index=index, id=call_id, name=name):
                    assert index == len(self.calls)
                    self.calls.append([call_id, name, ""])
                case ToolCallDelta(index=index, arguments_fragment=fragment):
                    self.calls[index][2] += fragment


def parse(case: Case, pieces: list[str], **options: object) -> tuple[Answer, TextFinish]:
    wanted = OutputOptions(tools=case.tools, **options)
    parser = OutputParser(PieceTexts(pieces), wanted, case.answer_format, case.prompt_tail)
    answer = Answer()
    for token_id in range(len(pieces)):
        answer.add(parser.push(token_id))
    answer.add(parser.finish(case.finish))
    assert parser.finish_reason is not None
    return answer, parser.finish_reason


def pieces_of(text: str, longest: int, seed: int = 0) -> list[str]:
    """The text in pieces of 1 to `longest` characters; a control token is never cut."""
    dice, pieces, position = random.Random(seed), [], 0
    while position < len(text):
        end = position + dice.randint(1, longest)
        if text[position] == MARK:
            end = max(end, position + _control_length(text[position + 1 :]) + 1)
        inner = text.find(MARK, position + 1, end)
        while 0 <= inner < end:  # a control token begins inside the piece: keep it whole
            end = max(end, inner + _control_length(text[inner + 1 :]) + 1)
            inner = text.find(MARK, inner + 1, end)
        pieces.append(text[position:end])
        position = end
    return pieces


def _control_length(text: str) -> int:
    tokens = {t for table in CONTROL_IDS.values() for t in table.values()}
    tokens |= {t for table in TOKENS.values() for t in table}
    return max(len(t) for t in tokens if text.startswith(t))


@cache
def cases() -> dict[str, Case]:
    families = load_families()
    found = {}
    for fixture in load_fixtures():
        reference = families[fixture.family].reference_for(fixture.reference_model)
        variant = (reference.variant if reference else None) or ""
        found[fixture.id] = _case(fixture, variant, reference)
    return found


def _case(fixture: Fixture, variant: str, reference: object) -> Case:
    family = fixture.family
    table = CONTROL_IDS.get(variant, CONTROL_IDS.get(family))
    tokens = tuple(table.values()) if table is not None else _special(variant, family)
    sign = SIGN_OF_VARIANT.get(variant, SIGN_OF_FAMILY.get(family, ""))
    answer_format = AnswerFormat(sign, set(tokens), set(tokens))
    if table is None:
        text = answer_format.mark(fixture.raw_output)
    else:
        text = mark_by_ids(fixture.raw_output, fixture.output_token_ids or (), table)
    prompt = fixture.generation_prompt
    if prompt is None:
        prompt = getattr(reference, "default_generation_prompt", None) or ""
    tools = tuple(_tool(t["function"]) for t in fixture.tools)
    return Case(fixture, answer_format, prompt, text, tools)


def _special(variant: str, family: str) -> tuple[str, ...]:
    return TOKENS.get(variant, TOKENS.get(family, ()))


def _tool(function: dict[str, object]) -> ToolSpec:
    parameters = function.get("parameters")
    return ToolSpec(str(function["name"]), "", parameters if isinstance(parameters, dict) else None)


def mark_by_ids(text: str, ids: Iterable[int], table: dict[int, str]) -> str:
    """Marks the occurrences that are control tokens: the cheapest way to lay ids over the text."""
    gaps, controls = [0], []
    for token_id in ids:
        if token_id in table:
            controls.append(table[token_id])
            gaps.append(0)
        else:
            gaps[-1] += 1
    # best[position after the n-th control] = (cost, positions of the controls)
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for gap, control in zip(gaps, [*controls, ""], strict=True):
        following: dict[int, tuple[float, tuple[int, ...]]] = {}
        for start, (cost, places) in best.items():
            ends = _places(text, control, start) if control else [len(text)]
            for place in ends:
                total = cost + _unlikely(len(text[start:place].encode()), gap)
                after = place + len(control)
                if after not in following or total < following[after][0]:
                    following[after] = total, (*places, place)
        best = following
    _, places = best[len(text)]
    for place in reversed(places[: len(controls)]):
        text = text[:place] + MARK + text[place:]
    return text


def _places(text: str, control: str, start: int) -> list[int]:
    places, place = [], text.find(control, start)
    while place >= 0:
        places.append(place)
        place = text.find(control, place + 1)
    return places


def _unlikely(size: int, tokens: int) -> float:
    """How unlikely it is that `size` bytes are `tokens` tokens."""
    if size < tokens or (size and not tokens):
        return 1e6
    return abs(size - 3.5 * tokens)


__all__ = ["Answer", "Case", "PieceTexts", "cases", "marked", "parse", "pieces_of"]
