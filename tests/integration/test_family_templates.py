"""Tools and thoughts through the chat templates that the families really have.

A template writes a call of an earlier turn as its model would. What it writes must come back out
of the parser that is chosen for it as the same call, from the first token after the prompt on.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from text_tokenizers import tokenizer

from swiftlm_engine.text.chat import Chat, Message, TextPart, ToolCall, ToolSpec
from swiftlm_engine.text.events import (
    ContentDelta,
    ReasoningDelta,
    TextFinish,
    ToolCallDelta,
    ToolCallStart,
)
from swiftlm_engine.text.model_text import ModelText
from swiftlm_engine.text.output_parser import OutputOptions
from swiftlm_engine.text.template import TemplateRefused

pytestmark = pytest.mark.slow  # a package of 77 MB has the templates

WHEELS = Path(__file__).resolve().parents[2] / ".cache" / "wheels"
PACKAGE = "llama_cpp_python-0.3.36.tar.gz"
TEMPLATES = {
    "qwen2": "Qwen-Qwen2.5-7B-Instruct",
    "qwen3": "Qwen-Qwen3-0.6B",
    "qwen3_moe": "Qwen3-Coder",
    "qwen3_5": "Qwen3.5-4B",
    "llama": "meta-llama-Llama-3.1-8B-Instruct",
    "mistral": "mistralai-Mistral-Nemo-Instruct-2407",
    "mistral3": "Mistral-Small-3.2-24B-Instruct-2506",
    "ministral3": "mistralai-Ministral-3-14B-Reasoning-2512",
    "gemma2": "google-gemma-2-2b-it",
    "gemma4": "google-gemma-4-31B-it",
    "phi3": "microsoft-Phi-3.5-mini-instruct",
    "gpt_oss": "openai-gpt-oss-120b",
    "glm4_moe": "GLM-4.6",
    "deepseek_v3": "deepseek-ai-DeepSeek-V3.1",
    "deepseek_v32": "deepseek-ai-DeepSeek-V3.2",
    "kimi_k2": "moonshotai-Kimi-K2",
    "lfm2": "LFM2-8B-A1B",
    "lfm2_5": "LFM2.5-8B-A1B",
    "llama3_3": "meta-llama-Llama-3.3-70B-Instruct",
    "glm4_7": "GLM-4.7-Flash",
    "deepseek_r1": "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "deepseek_v4": "deepseek-ai-DeepSeek-V4",
    "devstral": "unsloth-mistral-Devstral-Small-2507",
    "qwq": "Qwen-QwQ-32B",
    "smollm3": "HuggingFaceTB-SmolLM3-3B",
    "minimax_m2": "MiniMax-M2",
    "kimi_k3": "Kimi-K3",
    "granite4": "ibm-granite-granite-4.0",
}
THINKING = {
    "qwen3": "<think>\nhm\n</think>\n\nIt is mild.",
    "qwen3_5": "hm\n</think>\n\nIt is mild.",
    "glm4_moe": "\n<think>hm</think>\nIt is mild.",
    "glm4_7": "hm</think>It is mild.",
    "deepseek_r1": "hm\n</think>\n\nIt is mild.",
    "smollm3": "<think>\nhm\n</think>\nIt is mild.",
    "minimax_m2": "hm\n</think>\n\nIt is mild.",
    "lfm2_5": "<think>\nhm\n</think>\nIt is mild.",
    "ministral3": "[THINK]hm[/THINK]It is mild.",
    "gemma4": "<|channel>thought\nhm<channel|>It is mild.",
    "gpt_oss": "<|channel|>analysis<|message|>hm<|end|>"
    "<|start|>assistant<|channel|>final<|message|>It is mild.",
}

MARKERS = re.compile(
    r"<\|[^|<>\s{}'\"]+\|?>|<[a-z_]+\|>|<｜[^｜<>]+｜>|\[/?[A-Z_]+\]|<\|\"\|>|</?s>"  # noqa: RUF001
    r"|<(?:start|end)_of_turn>"
)
WRITTEN_OUT = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>",
               "<arg_value>", "</arg_value>")  # fmt: skip
WEATHER = ToolSpec(
    "get_weather", "Weather now", {"type": "object", "properties": {"city": {"type": "string"}}}
)
# What a vocabulary has and its template does not name.
UNNAMED = {"lfm2": ("<|tool_call_start|>", "<|tool_call_end|>")}
IDS = {"kimi_k2": "functions.get_weather:0"}  # its template writes nothing else of the name
QUESTION = Message("user", (TextPart("How warm is it?"),))


@pytest.fixture(scope="module")
def templates() -> dict[str, str]:
    if not (WHEELS / PACKAGE).exists():
        name = "llama-cpp-python==0.3.36"
        options = ("-q", "--no-deps", "--no-binary", ":all:", "-d", str(WHEELS))
        subprocess.run([sys.executable, "-m", "pip", "download", *options, name], check=True)
    found = {}
    with tarfile.open(WHEELS / PACKAGE) as package:
        for member in package:
            if "/models/templates/" in member.name and member.name.endswith(".jinja"):
                found[Path(member.name).stem] = package.extractfile(member).read().decode()
    return found


def text_of(template: str, unnamed: tuple[str, ...] = ()) -> ModelText:
    special = (*dict.fromkeys((*MARKERS.findall(template), *unnamed)), "<eos>")
    return ModelText(tokenizer(template, special, tuple(t for t in WRITTEN_OUT if t in template)))


def parsed(text: ModelText, prompt, token_ids) -> tuple[str, str, list[list[str]]]:
    """Thoughts, answer, calls of the tokens after the prompt."""
    parser = text.output(OutputOptions(tools=(WEATHER,)), prompt)
    events = [event for token_id in token_ids for event in parser.push(token_id)]
    events += parser.finish(TextFinish.STOP)
    thought = answer = ""
    calls: list[list[str]] = []
    for event in events:
        match event:
            case ReasoningDelta(text=part):
                thought += part
            case ContentDelta(text=part):
                answer += part
            case ToolCallStart(name=name):
                calls.append([name, ""])
            case ToolCallDelta(arguments_fragment=part):
                calls[-1][1] += part
    return thought, answer, calls


@pytest.mark.parametrize("family", TEMPLATES)
def test_call_in_the_familys_own_words_comes_back_as_the_call(family, templates):
    text = text_of(templates[TEMPLATES[family]], UNNAMED.get(family, ()))
    prompt = text.render(Chat((QUESTION,), (WEATHER,)))
    call = ToolCall(IDS.get(family, "call12345"), WEATHER.name, '{"city": "Paris"}')
    asked = Message("assistant", (TextPart(""),), tool_calls=(call,))
    result = Message("tool", (TextPart("20 degrees"),), tool_call_id=call.id)
    whole = text.render(Chat((QUESTION, asked, result), (WEATHER,)))
    assert WEATHER.name in prompt.text
    pairs = zip(prompt.token_ids, whole.token_ids, strict=False)
    shared = next((i for i, (a, b) in enumerate(pairs) if a != b), len(prompt.token_ids))
    after = whole.token_ids[shared:]
    said = text.texts.start()
    pieces = [said.push(token_id) for token_id in after]
    end = next(i for i in range(len(after)) if "20 deg" in "".join(pieces[: i + 1]))
    thought = text._tokenizer.encode("hm\n</think>\n\n", add_special_tokens=False)
    opened = thought if prompt.thinking_preopened else []  # the history leaves thoughts out
    _, _, calls = parsed(text, prompt, [*opened, *after[:end]])
    assert calls == [[call.name, call.arguments]]


@pytest.mark.parametrize("family", THINKING)
def test_thought_in_the_familys_own_words_is_told_from_the_answer(family, templates):
    text = text_of(templates[TEMPLATES[family]])
    prompt = text.render(Chat((QUESTION,)))
    token_ids = text._tokenizer.encode(THINKING[family], add_special_tokens=False)
    thought, answer, calls = parsed(text, prompt, token_ids)
    assert (thought.strip(), answer.strip(), calls) == ("hm", "It is mild.", [])


# Families whose thoughts have no switch: a budget closes them.
UNSWITCHED = {
    "Apriel-1.6-15b-Thinker-fixed",
    "Kimi-K2-Thinking",
    "LFM2.5-8B-A1B",
    "MiniMax-M2",
    "NVIDIA-Nemotron-Nano-v2",
    "StepFun3.5-Flash",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "llama-cpp-deepseek-r1",
    "mistralai-Ministral-3-14B-Reasoning-2512",
    "muse-glimmer",
    "openai-gpt-oss-120b",
    "unsloth-Apriel-1.5",
    "upstage-Solar-Open-100B",
}


def test_thinking_is_switched_off_by_every_template_that_can_and_else_by_a_budget(templates):
    unswitched, refused = set(), []
    for name, source in templates.items():
        text = text_of(source)
        if not text.format.reasons:
            assert not text.template.thinking.switches, name
            continue
        off, on = Chat((QUESTION,), enable_thinking=False), Chat((QUESTION,), enable_thinking=True)
        if not text.template.thinking.switches:
            unswitched.add(name)
            assert text.thinking_budget(off) == 0, name
            continue
        assert text.render(off).text != text.render(on).text, name
        assert not text.render(off).thinking_preopened, name
        for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max"):
            asked = Chat((QUESTION,), reasoning_effort=effort)
            try:
                text.render(asked)
            except TemplateRefused as error:
                refused.append((name, effort, str(error)))
    assert not refused
    assert unswitched == UNSWITCHED


ARGUMENTS = {"city": "Paris, <b>", "days": 3, "tags": ["a", "b"], "opts": {"x": True}}
RICH = ToolSpec(
    "get_weather",
    "Weather now",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where"},
            "days": {"type": "integer", "description": "How long"},
            "tags": {"type": "array", "items": {"type": "string"}, "description": "Which"},
            "opts": {
                "type": "object",
                "properties": {"x": {"type": "boolean", "description": "Whether"}},
                "additionalProperties": False,
                "description": "How",
            },
        },
    },
)
UNREAD = ["meetkai-functionary-medium-v3.2"]  # of 2024, in a form of its own
# Whose templates want what transformers does not give them.
FOREIGN = {
    "fireworks-ai-llama-3-firefunction-v2": "functions",
    "llama-cpp-deepseek-r1": "a filter of llama.cpp",
}


def test_what_every_template_writes_of_a_call_the_parser_of_its_model_reads(templates):
    unread = []
    for name, template in sorted(templates.items()):
        if name in FOREIGN:
            continue
        lists = ("<|tool_call_start|>", "<|tool_call_end|>") if name.startswith("LFM2-") else ()
        text = text_of("{%- set bos_token = '' -%}" + template, lists)
        call = ToolCall("call12345", RICH.name, json.dumps(ARGUMENTS))
        asked = Message("assistant", (TextPart(""),), tool_calls=(call,))
        result = Message("tool", (TextPart("20 degrees"),), tool_call_id=call.id)
        prompt = text.render(Chat((QUESTION, asked, result), (RICH,)))
        find, at, calls = text.format.finder((RICH,)), 0, []
        while (block := find(prompt.text, at)) is not None:
            calls += block.calls
            at = max(block.end, at + 1)
        read = (RICH.name, ARGUMENTS) in [(n, json.loads(a or "{}")) for n, a in calls]
        if not read:
            unread.append(name)
        # What cannot be read is not promised.
        assert bool(text.tool_format) == (read and text.template.knows_tools), name
    assert unread == UNREAD
