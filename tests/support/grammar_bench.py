"""Grammars over small vocabularies: what they allow, token by token, for every family of calls."""

import random

import numpy as np
from text_tokenizers import CHATML, tokenizer

from swiftlm_engine.grammar.constraint import Constraint, ConstraintCompiler, Rule
from swiftlm_engine.text.answer_format import AnswerFormat
from swiftlm_engine.text.chat import ToolSpec
from swiftlm_engine.text.detokenizer import TokenTexts

WEATHER = ToolSpec(
    "get_weather",
    "",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"enum": ["c", "f"]},
            "days": {"type": "integer"},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
)
TOOLS = (WEATHER, ToolSpec("get_time", "", {"type": "object", "properties": {}}))


class Bench:
    """A compiler over one small vocabulary."""

    def __init__(
        self,
        template: str = CHATML,
        special: tuple[str, ...] = ("<|im_start|>", "<|im_end|>"),
        added: tuple[str, ...] = ("<think>", "</think>", "<tool_call>", "</tool_call>"),
    ) -> None:
        self.tokenizer = tokenizer(template, special, added)
        vocabulary = self.tokenizer.get_vocab()
        self.format = AnswerFormat(template, special, vocabulary)
        self.texts = TokenTexts(self.tokenizer, self.format.controls)
        self.end = self.tokenizer.eos_token_id
        self.size = len(self.tokenizer) + 50  # logits are often wider than the vocabulary
        self.compiler = ConstraintCompiler(
            self.tokenizer, self.texts, self.format, template, self.size, [self.end]
        )

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def allowed(self, constraint: Constraint) -> set[int] | None:
        row = np.zeros(self.compiler.mask_width, np.int32)
        if not constraint.mask(row):
            return None
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        return set(np.flatnonzero(bits).tolist())

    def follow(self, constraint: Constraint, text: str) -> str | None:
        """None when the text and then the end are allowed; else what came before the refusal."""
        ids = self.ids(text)
        for position, token_id in enumerate([*ids, self.end]):
            allowed = self.allowed(constraint)
            if allowed is not None and token_id not in allowed:
                return self.tokenizer.decode(ids[:position])
            if token_id != self.end:
                constraint.advance(token_id)
        return None

    def accepts(self, rule: Rule, text: str, opening: str = "", thinks: bool = False) -> bool:
        return self.follow(self.compiler.start(rule, opening, thinks), text) is None

    def sample(self, rule: Rule, seed: int, limit: int = 4000) -> str:
        """A text of a model with random weights."""
        dice, ids = random.Random(seed), []
        constraint = self.compiler.start(rule, thinks=False)
        while not constraint.is_done and len(ids) < limit:
            allowed = self.allowed(constraint)
            assert allowed
            ids.append(dice.choice(sorted(allowed)))
            if ids[-1] == self.end:
                return self.tokenizer.decode(ids[:-1])
            constraint.advance(ids[-1])
        return self.tokenizer.decode(ids)


# What the grammar of each family lets through for one call of get_weather.
Q = '{"city": "Rome", "days": 3}'
CALLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "hermes": (f'<tool_call>\n{{"name": "get_weather", "arguments": {Q}}}\n</tool_call>', ()),
    "qwen": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        (),
    ),
    "glm": (
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value>"
        "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>",
        ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "longcat": (
        "<longcat_tool_call>get_weather<longcat_arg_key>city</longcat_arg_key>"
        "<longcat_arg_value>Rome</longcat_arg_value><longcat_arg_key>days</longcat_arg_key>"
        "<longcat_arg_value>3</longcat_arg_value></longcat_tool_call>",
        (),
    ),
    "mistral": (f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {Q}}}]', ("[TOOL_CALLS]",)),
    "gemma4": (
        '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>',
        ("<|tool_call>", "<tool_call|>", '<|"|>'),
    ),
    "function_gemma": (
        "<start_function_call>call:get_weather{city:<escape>Rome<escape>,days:3}"
        "<end_function_call>",
        ("<start_function_call>", "<end_function_call>", "<escape>"),
    ),
    "pythonic": (
        '<|tool_call_start|>[get_weather(city="Rome", days=3)]<|tool_call_end|>',
        ("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        f"<|tool_call_argument_begin|>{Q}<|tool_call_end|><|tool_calls_section_end|>",
        ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
         "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
    "kimi_k3": (
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Rome<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="integer"<|sep|>3<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>",
        ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
    ),
    "deepseek": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"  # noqa: RUF001
        f"{Q}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",  # noqa: RUF001
        (),
    ),
    "dsml": (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n'  # noqa: RUF001
        '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'  # noqa: RUF001
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'  # noqa: RUF001
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",  # noqa: RUF001
        (),
    ),
    "minimax": (
        '<minimax:tool_call>\n<invoke name="get_weather">\n'
        '<parameter name="city">Rome</parameter>\n<parameter name="days">3</parameter>\n'
        "</invoke>\n</minimax:tool_call>",
        (),
    ),
    "minicpm": (
        '<function name="get_weather"><param name="city">Rome</param><param name="days">3</param>'
        "</function>",
        (),
    ),
    "llama3": (f'{{"name": "get_weather", "parameters": {Q}}}', ("<|python_tag|>",)),
    "llama4": ('[get_weather(city="Rome", days=3)]', ("<|python_start|>", "<|python_end|>")),
    "nemotron": (f'<TOOLCALL>[{{"name": "get_weather", "arguments": {Q}}}]</TOOLCALL>', ()),
    "cohere": (
        f'<|START_ACTION|>[{{"tool_name": "get_weather", "parameters": {Q}}}]<|END_ACTION|>',
        ("<|START_ACTION|>", "<|END_ACTION|>"),
    ),
    "granite": (f'<|tool_call|>[{{"name": "get_weather", "arguments": {Q}}}]', ("<|tool_call|>",)),
}  # fmt: skip
SIGNS: dict[str, str] = {
    "hermes": "<tool_call>", "qwen": "<function=", "glm": "<arg_key>", "mistral": "[TOOL_CALLS]",
    "deepseek": "<｜tool▁calls▁begin｜>", "dsml": "<｜DSML｜tool_calls>",  # noqa: RUF001
}  # fmt: skip


def bench_of(family: str) -> Bench:
    text, special = CALLS[family]
    added = ("<tool_call>", "</tool_call>") if family in ("hermes", "qwen", "glm") else ()
    return Bench(SIGNS.get(family, text), (*special, "</s>"), added)
