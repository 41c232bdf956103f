"""Promises of the replay: what a model wrote comes back whole, and only into its conversation."""

import json

import pytest
from parser_fixtures import Answer
from text_tokenizers import tokenizer

from swiftlm_engine.text.chat import Chat, Message, TextPart, ToolCall, ToolSpec
from swiftlm_engine.text.events import TextFinish
from swiftlm_engine.text.model_text import ModelText
from swiftlm_engine.text.output_parser import OutputOptions
from swiftlm_engine.text.template import RenderedPrompt

LOOK = ToolSpec(
    "look",
    "",
    {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
)
QUESTION = Message("user", (TextPart("Where is it?"),))
HEAD = r"""
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{{- '<|im_start|>assistant\n' }}
{%- if m.reasoning_content %}{{- '<think>' + m.reasoning_content + '</think>' }}{%- endif %}
{{- m.content }}"""
TAIL = r"""
{{- '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}
{{- '<|im_start|>tool\n## Return of ' + m.tool_call_id + '\n' + m.content + '<|im_end|>\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}{#- tools #}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
KIMI_CALLS = r"""
{%- if m.tool_calls %}{{- '<|tool_calls_section_begin|>' }}
{%- for call in m.tool_calls %}
{{- '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' }}
{{- call.function.arguments | tojson + '<|tool_call_end|>' }}
{%- endfor %}{{- '<|tool_calls_section_end|>' }}{%- endif %}"""
MISTRAL_CALLS = r"""
{%- for call in m.tool_calls or [] %}
{{- '[TOOL_CALLS]' + call.function.name + '[CALL_ID]' + call.id + '[ARGS]' }}
{{- call.function.arguments | tojson }}
{%- endfor %}"""
HERMES_CALLS = r"""
{%- for call in m.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{- '}\n</tool_call>' }}
{%- endfor %}"""
END = "<|im_end|>"
KIMI = (
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>", "<|tool_call_end|>",
)  # fmt: skip
MODELS = {
    "kimi_k2": (KIMI_CALLS, KIMI, (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0"
        "<|tool_call_argument_begin|>ARGUMENTS<|tool_call_end|><|tool_calls_section_end|>"
    )),
    "mistral": (MISTRAL_CALLS, ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
                "[TOOL_CALLS]look[CALL_ID]abcdefghi[ARGS]ARGUMENTS"),
    "hermes": (HERMES_CALLS, ("<tool_call>", "</tool_call>"),
               '<tool_call>\n{"name": "look", "arguments": ARGUMENTS}\n</tool_call>'),
}  # fmt: skip
WRITTEN_ID = {"kimi_k2": "functions.look:0", "mistral": "abcdefghi", "hermes": "call_7"}


class Talk:
    """A model that answers what the test makes it write."""

    def __init__(self, family: str) -> None:
        calls, special, self._call = MODELS[family]
        self.tokenizer = tokenizer(HEAD + calls + TAIL, (*special, END))
        self.text = ModelText(self.tokenizer)
        assert self.text.format.name == family

    def call(self, arguments: str) -> str:
        return self._call.replace("ARGUMENTS", arguments)

    def answer(
        self,
        messages: tuple[Message, ...],
        written: str,
        reason: TextFinish = TextFinish.STOP,
        salt: str = "",
        **options: object,
    ) -> tuple[Message, int]:
        """The assistant's message as a client keeps it (without thoughts), and tokens taken."""
        wanted = OutputOptions(tools=(LOOK,), **options)
        parser = self.text.output(wanted, self.render(messages, salt))
        seen, taken = Answer(), 0
        for token_id in self.tokenizer.encode(written, add_special_tokens=False):
            if parser.stopped:
                break
            seen.add(parser.push(token_id))
            taken += 1
        seen.add(parser.finish(reason))
        self.text.remember(parser, salt)
        calls = tuple(ToolCall(*call) for call in seen.calls)
        return Message("assistant", (TextPart(seen.content),), tool_calls=calls), taken

    def render(self, messages: tuple[Message, ...], salt: str = "") -> RenderedPrompt:
        return self.text.render(Chat(messages, (LOOK,), cache_salt=salt))

    def next_prompt(self, *messages: Message, salt: str = "") -> str:
        results = [Message("tool", (TextPart("Done."),), tool_call_id=c.id)
                   for c in messages[-1].tool_calls]  # fmt: skip
        return self.render((*messages, *results), salt).text


@pytest.mark.parametrize("family", MODELS)
def test_thoughts_of_one_conversation_never_enter_another(family: str) -> None:
    talk = Talk(family)
    theirs, _ = talk.answer(
        (QUESTION,), "<think>A earns 91234.</think>" + talk.call('{"at": "home"}')
    )
    for call_id in (WRITTEN_ID[family], theirs.tool_calls[0].id):
        other = ToolCall(call_id, "look", '{"at": "there"}')
        prompt = talk.next_prompt(QUESTION, Message("assistant", tool_calls=(other,)))
        assert "91234" not in prompt
        assert "home" not in prompt
        renamed = ToolCall(call_id, "see", '{"at": "home"}')
        prompt = talk.next_prompt(QUESTION, Message("assistant", tool_calls=(renamed,)))
        assert "91234" not in prompt


@pytest.mark.parametrize("family", MODELS)
def test_a_tenant_with_another_cache_salt_recalls_nothing(family: str) -> None:
    talk = Talk(family)
    said = "<think>A earns 91234.</think>" + talk.call('{"at":   "home"}')
    theirs, _ = talk.answer((QUESTION,), said, salt="a")
    assert "91234" not in talk.next_prompt(QUESTION, theirs, salt="b")
    assert '{"at":   "home"}' not in talk.next_prompt(QUESTION, theirs)
    prompt = talk.next_prompt(QUESTION, theirs, salt="a")
    assert said in prompt.replace("</think>\n", "</think>")


@pytest.mark.parametrize("family", MODELS)
def test_each_turn_gets_the_thoughts_it_had(family: str) -> None:
    talk = Talk(family)
    first, _ = talk.answer((QUESTION,), "<think>One.</think>" + talk.call('{"at": "a"}'))
    result = Message("tool", (TextPart("No."),), tool_call_id=first.tool_calls[0].id)
    asked = (QUESTION, first, result)
    second, _ = talk.answer(asked, "<think>Two.</think>" + talk.call('{"at": "b"}'))
    prompt = talk.next_prompt(*asked, second)
    assert prompt.count("One.") == prompt.count("Two.") == 1
    assert prompt.index("One.") < prompt.index("Two.")


def test_two_calls_that_the_model_gave_one_id_reach_the_client_as_two() -> None:
    talk = Talk("kimi_k2")
    one = talk.call('{"at": "a"}').removesuffix("<|tool_calls_section_end|>")
    two = talk.call('{"at": "b"}').removeprefix("<|tool_calls_section_begin|>")
    answer, _ = talk.answer((QUESTION,), one + two)
    assert len({call.id for call in answer.tool_calls}) == 2
    assert one + two in talk.next_prompt(QUESTION, answer)


def test_results_name_the_call_as_the_model_did() -> None:
    for family in ("kimi_k2", "mistral"):
        talk = Talk(family)
        answer, _ = talk.answer((QUESTION,), talk.call('{"at": "a"}'))
        assert f"## Return of {WRITTEN_ID[family]}\n" in talk.next_prompt(QUESTION, answer)


def test_kimis_prompt_counts_the_calls_that_nobody_remembers() -> None:
    talk = Talk("kimi_k2")
    calls = tuple(ToolCall(f"call_{n}", "look", json.dumps({"at": str(n)})) for n in range(2))
    prompt = talk.next_prompt(QUESTION, Message("assistant", tool_calls=calls))
    assert "<|tool_call_begin|>functions.look:0<" in prompt
    assert "## Return of functions.look:1\n" in prompt
    assert "call_" not in prompt.replace("tool_call", "")


@pytest.mark.parametrize("family", MODELS)
def test_one_call_only_leaves_a_history_that_the_model_could_have_written(family: str) -> None:
    talk = Talk(family)
    written = talk.call('{"at":  "a"}')
    answer, taken = talk.answer(
        (QUESTION,), "<think>Hm.</think>" + written + talk.call('{"at": "b"}'),
        parallel_tool_calls=False,
    )  # fmt: skip
    assert len(answer.tool_calls) == 1
    assert taken < len(talk.tokenizer.encode(written * 2))
    prompt = talk.next_prompt(QUESTION, answer)
    assert f"<think>Hm.</think>{written}{END}" in prompt.replace("</think>\n", "</think>")


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("stop", [(), ("\n</tool_call>", "<|tool_call_end|>")])
def test_a_call_cut_behind_its_arguments_is_closed_in_the_history(
    family: str, stop: tuple[str, ...]
) -> None:
    talk = Talk(family)
    written = talk.call('{"at": "a"}')
    if not stop:
        written = written[: written.index("}") + (2 if family == "hermes" else 1)]
    reason = TextFinish.STOP if stop else TextFinish.LENGTH
    answer, _ = talk.answer((QUESTION,), "<think>Hm.</think>" + written, reason, stop=stop)
    prompt = talk.next_prompt(QUESTION, answer)
    assert "<think>Hm.</think>" in prompt
    if family == "hermes":
        assert '{"at": "a"}}\n</tool_call>' + END in prompt
    elif family == "kimi_k2":
        assert "<|tool_call_end|><|tool_calls_section_end|>" + END in prompt


def test_a_model_that_never_closes_its_one_call_is_stopped() -> None:
    talk = Talk("kimi_k2")
    cut = talk.call('{"at": "a"}').split("<|tool_call_end|>")[0]
    _, taken = talk.answer((QUESTION,), cut + " and" * 200, parallel_tool_calls=False)
    assert taken < 120
