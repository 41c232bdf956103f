"""Promises of the template room: what is refused is said otherwise, nothing is lost, boundaries."""

import json

import pytest
from text_tokenizers import CHATML, STRICT, tokenizer

from swiftlm_engine.text.chat import Chat, ImagePart, Message, TextPart, ToolCall, ToolSpec
from swiftlm_engine.text.events import TextFinish, ToolCallStart
from swiftlm_engine.text.model_text import ModelText
from swiftlm_engine.text.output_parser import OutputOptions
from swiftlm_engine.text.replay import RawCallMemory, RawCalls
from swiftlm_engine.text.template import ChatTemplate, RenderedPrompt, TemplateRefused

WEATHER = ToolSpec(
    "get_weather", "Weather now", {"type": "object", "properties": {"city": {"type": "string"}}}
)
CALL = ToolCall("call_0123456789", "get_weather", '{"city": "Paris"}')


def say(role: str, text: str, **more: object) -> Message:
    return Message(role, (TextPart(text),), **more)


def asked_and_answered(call: ToolCall = CALL) -> tuple[Message, ...]:
    return (
        say("user", "How warm is it?"),
        Message("assistant", (TextPart(""),), tool_calls=(call,)),
        say("tool", "20 degrees", tool_call_id=call.id),
    )


def render(chat: Chat, template: str | None = CHATML, **tokens: object) -> RenderedPrompt:
    return ChatTemplate(tokenizer(template, **tokens)).render(chat)


STRICT_TOKENS = {"special": ("[INST]", "[/INST]", "[TOOL_CALLS]", "</s>"), "added": ()}


def render_strict(*messages: Message, **more: object) -> str:
    return render(Chat(messages, **more), STRICT, **STRICT_TOKENS).text


def test_the_token_ids_are_those_of_the_text() -> None:
    prompt = render(Chat((say("system", "Be brief."), say("user", "Hi"))))
    made = tokenizer()
    assert list(prompt.token_ids) == made.encode(prompt.text, add_special_tokens=False)
    assert prompt.text.endswith("<|im_start|>assistant\n")


def test_two_user_turns_in_a_row_become_one() -> None:
    assert render_strict(say("user", "one"), say("user", "two")) == "[INST]one\n\ntwo[/INST]"


def test_a_question_after_a_tool_result_renders() -> None:
    text = render_strict(*asked_and_answered(), say("user", "And tomorrow?"))
    assert text.endswith("[TOOL_RESULTS]20 degrees[/TOOL_RESULTS]</s>[INST]And tomorrow?[/INST]")


def test_a_denied_call_without_a_result_renders() -> None:
    question, call, _ = asked_and_answered()
    text = render_strict(question, call, say("user", "No, leave it."))
    assert text.endswith("</s>[INST]No, leave it.[/INST]")


def test_a_system_message_goes_into_the_first_user_turn_where_there_is_no_such_role() -> None:
    text = render_strict(say("system", "Be brief."), say("user", "Hi"))
    assert text == "[INST]Be brief.\n\nHi[/INST]"


def test_a_developer_message_in_the_middle_is_said_by_the_user() -> None:
    text = render_strict(say("user", "a"), say("assistant", "b"), say("developer", "c"))
    assert text == "[INST]a[/INST]b</s>[INST]c[/INST]"


def test_ids_are_made_short_for_a_template_that_counts_their_letters() -> None:
    assert '"name": "get_weather"' in render_strict(*asked_and_answered())


def test_a_silently_dropped_system_message_is_said_otherwise() -> None:
    forgetful = "{% for m in messages if m.role != 'system' %}{{ m.content }};{% endfor %}"
    text = render(Chat((say("system", "Be brief."), say("user", "Hi"))), forgetful).text
    assert text == "Be brief.\n\nHi;"


def test_a_refusal_names_the_message() -> None:
    picky = (
        "{% for m in messages %}{% if 'bad' in m.content %}{{ raise_exception('bad word') }}"
        "{% endif %}{{ m.content }}{% endfor %}"
    )
    chat = Chat((say("user", "fine"), say("assistant", "ok"), say("user", "bad")))
    with pytest.raises(TemplateRefused, match=r"messages\[2\].*bad word") as refused:
        render(chat, picky)
    assert refused.value.message_index == 2


def test_an_image_for_a_model_without_eyes_is_refused_by_its_index() -> None:
    image = Message("user", (TextPart("see"), ImagePart(b"x", "image/png")))
    with pytest.raises(TemplateRefused, match=r"messages\[1\].*no place for images"):
        render(Chat((say("system", "s"), image)))


def test_a_model_without_a_template_says_so() -> None:
    with pytest.raises(TemplateRefused, match="no chat template"):
        render(Chat((say("user", "Hi"),)), None)


def test_text_parts_become_paragraphs() -> None:
    parts = Message("user", (TextPart("one"), TextPart("two")))
    assert "<|im_start|>user\none\ntwo<|im_end|>" in render(Chat((parts,))).text


def test_a_template_that_wants_parts_gets_parts() -> None:
    wants_parts = (
        "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}"
    )
    assert render(Chat((say("user", "Hi"),)), wants_parts).text == "<Hi>"


def test_arguments_reach_the_template_as_an_object() -> None:
    assert '"arguments": {"city": "Paris"}' in render(Chat(asked_and_answered(), (WEATHER,))).text


def test_arguments_reach_a_template_that_pastes_them_as_text() -> None:
    pastes = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name + c.function.arguments }}{% endfor %}{% endfor %}{# tools #}"
    )
    assert 'get_weather{"city": "Paris"}' in render(Chat(asked_and_answered()), pastes).text


@pytest.mark.parametrize("broken", ['{"city": "Par', "not json", "[1]"])
def test_broken_arguments_in_the_history_are_kept_as_text(broken: str) -> None:
    messages = asked_and_answered(ToolCall("call_0123456789", "get_weather", broken))
    assert json.dumps(broken)[1:-1] in render(Chat(messages)).text
    assert json.dumps(broken)[1:-1] in render_strict(*messages)


def test_a_regex_in_the_arguments_is_mended() -> None:
    messages = asked_and_answered(ToolCall("call_0123456789", "grep", r'{"city": "\d+"}'))
    assert r'{"city": "\\d+"}' in render(Chat(messages)).text


def test_tools_are_explained_to_a_template_that_knows_none() -> None:
    plain = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    text = render(Chat(asked_and_answered(), (WEATHER,)), plain).text
    assert "[system]" in text
    assert '"name": "get_weather", "description": "Weather now"' in text
    assert '[assistant]<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}' in text
    assert "[user]<tool_response>\n20 degrees\n</tool_response>" in text


def test_a_template_that_forgets_the_calls_gets_them_as_text() -> None:
    forgets = "{{ tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    text = render(Chat(asked_and_answered(), (WEATHER,)), forgets).text
    assert '{"name": "get_weather", "arguments": {"city": "Paris"}}' in text


def test_a_call_is_missed_although_all_its_words_were_said_by_the_user() -> None:
    forgets = "{{ tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    _, *rest = asked_and_answered()
    text = render(Chat((say("user", "Which city is Paris?"), *rest), (WEATHER,)), forgets).text
    assert '{"name": "get_weather", "arguments": {"city": "Paris"}}' in text


FORGETFUL = """{%- if tools %}{{- 'Tools: ' + tools | tojson }}{%- endif %}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + ' ' + m.content + '<|im_end|>' }}
{%- endfor %}"""


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ('{"city": "Zürich \\"W\\"", "days": 3}', 'city="Zürich \\"W\\"", days=3'),
        ('{"city": "Paris", "now": true, "at": null}', 'city="Paris", now=True, at=None'),
        ('{"cities": ["Paris", {"of": "Oslo"}]}', 'cities=["Paris", {"of": "Oslo"}]'),
        ('{"city": "Paris', '{"city": "Paris'),
    ],
)
def test_forgotten_calls_are_written_as_a_model_of_python_calls_writes_them(
    arguments: str, written: str
) -> None:
    messages = asked_and_answered(ToolCall("call_0123456789", "get_weather", arguments))
    tokens = {"special": ("<|tool_call_start|>", "<|tool_call_end|>", "<|im_end|>")}
    text = render(Chat(messages, (WEATHER,)), FORGETFUL, **tokens).text
    assert f"<|tool_call_start|>[get_weather({written})]<|tool_call_end|>" in text
    assert "<|im_start|>tool 20 degrees<|im_end|>" in text


def test_an_open_answer_goes_on_where_it_ends() -> None:
    chat = Chat((say("user", "Hi"), say("assistant", "Well, ")), continue_final_message=True)
    assert render(chat).text.endswith("<|im_start|>assistant\nWell, ")


def test_open_thoughts_go_on_where_they_end() -> None:
    thinking = Message("assistant", (TextPart(""),), reasoning="First, ")
    prompt = render(Chat((say("user", "Hi"), thinking), continue_final_message=True))
    assert prompt.text.endswith("<think>\nFirst, ")
    assert prompt.thinking_preopened


@pytest.mark.parametrize(("thinking", "preopened"), [(None, False), (True, True), (False, False)])
def test_a_template_that_opens_the_thoughts_is_noticed(
    thinking: bool | None, preopened: bool
) -> None:
    chat = Chat((say("user", "What is <think>?"),), enable_thinking=thinking)
    assert render(chat).thinking_preopened is preopened


def test_effort_none_turns_thinking_off() -> None:
    text = render(Chat((say("user", "Hi"),), reasoning_effort="none")).text
    assert text.endswith("<think>\n\n</think>\n\n")


def test_defaults_of_the_model_give_way_to_the_request() -> None:
    template = ChatTemplate(tokenizer("{{ mood }}{{ messages[0].content }}"), {"mood": "sad "})
    user = (say("user", "Hi"),)
    assert template.render(Chat(user)).text == "sad Hi"
    assert template.render(Chat(user, template_kwargs={"mood": "glad "})).text == "glad Hi"


def before(prompt: RenderedPrompt, made: object) -> list[str]:
    return [made.decode(list(prompt.token_ids[:n])) for n in prompt.boundaries]


def test_boundaries_stand_after_the_system_message_each_turn_and_before_the_answer() -> None:
    messages = (say("system", "Be brief."), say("user", "Hi"), say("assistant", "Yes?"))
    prompt = render(Chat((*messages, say("user", "Go")), enable_thinking=True))
    texts = before(prompt, tokenizer())
    system = "<|im_start|>system\nBe brief.<|im_end|>\n"
    first = system + "<|im_start|>user\nHi<|im_end|>\n"
    answered = first + "<|im_start|>assistant\nYes?<|im_end|>\n"
    asked = answered + "<|im_start|>user\nGo<|im_end|>\n"
    assert set(texts) >= {system, first, answered, asked, asked + "<|im_start|>assistant\n"}
    assert list(prompt.boundaries) == sorted(set(prompt.boundaries))


def test_a_boundary_parts_the_tools_from_what_follows() -> None:
    chat = Chat((say("system", "Be brief."), say("user", "Hi")), (WEATHER,))
    texts = before(render(chat), tokenizer())
    assert any(text.endswith("</tool_call><|im_end|>\n<|im_start|>user\n") for text in texts)
    assert any(text.endswith("Be brief.") or text.endswith("Be brief.\n\n") for text in texts)


def test_the_prompt_of_the_next_turn_begins_like_this_one_up_to_a_boundary() -> None:
    template = ChatTemplate(tokenizer())
    turn = Chat((say("user", "Hi"),), enable_thinking=True)
    first = template.render(turn)
    later = (*turn.messages, say("assistant", "Yes?", reasoning="Hm."), say("user", "Go"))
    second = template.render(Chat(later, enable_thinking=True))
    shared = next(
        (
            i
            for i, (a, b) in enumerate(zip(first.token_ids, second.token_ids, strict=False))
            if a != b
        )
    )
    assert max(n for n in first.boundaries if n <= shared) == shared


def test_a_long_conversation_draws_few_beginnings() -> None:
    template = ChatTemplate(tokenizer())
    drawn = 0
    draw = template._renderer.draw

    def counted(*args: object, **kwargs: object) -> str:
        nonlocal drawn
        drawn += 1
        return draw(*args, **kwargs)

    template._renderer.draw = counted
    turns = [say("user" if i % 2 == 0 else "assistant", f"turn {i}") for i in range(41)]
    template.render(Chat(tuple(turns)))
    assert drawn < 20
    drawn = 0
    more = (*turns, say("assistant", "turn 41"), say("user", "turn 42"))
    prompt = template.render(Chat(more))
    assert drawn <= 4
    assert len(prompt.boundaries) >= 10


def test_calls_go_back_into_the_prompt_as_the_model_wrote_them() -> None:
    made = ModelText(tokenizer())
    raw = '<tool_call>{"arguments":{"city":"Paris"},"name":"get_weather"}</tool_call>'
    question = say("user", "How warm is it?")
    first = made.render(Chat((question,), (WEATHER,)))
    parser = made.output(OutputOptions(tools=(WEATHER,)), first)
    ids = tokenizer().encode("I look.\n\n" + raw, add_special_tokens=False)
    events = [e for i in ids for e in parser.push(i)] + parser.finish(TextFinish.STOP)
    made.remember(parser)
    call_id = next(e.id for e in events if isinstance(e, ToolCallStart))
    call = ToolCall(call_id, "get_weather", '{"city": "Paris"}')
    answered = (
        question,
        Message("assistant", (TextPart("I look."),), tool_calls=(call,)),
        say("tool", "20 degrees", tool_call_id=call_id),
    )
    second = made.render(Chat(answered, (WEATHER,)))
    assert f"I look.\n\n{raw}<|im_end|>" in second.text
    assert second.token_ids[: len(first.token_ids) + len(ids)] == (*first.token_ids, *ids)
    texts = before(second, tokenizer())
    assert any(text.endswith(f"{raw}<|im_end|>\n") for text in texts)


def test_thoughts_before_a_call_come_back_for_a_client_that_cannot_send_them() -> None:
    made = ModelText(tokenizer())
    made.memory.remember([RawCalls((CALL.id,), "<tool_call>{}</tool_call>", None, "I must look.")])
    question, call, _ = asked_and_answered()
    chat = Chat((question, call))
    assert "<think>\nI must look.\n</think>" in made.render(chat).text
    inline = Message("assistant", (TextPart("<think>No.</think>"),), tool_calls=(CALL,))
    assert "I must look." not in made.render(Chat((question, inline))).text
    empty = Message("assistant", (TextPart(""),), reasoning="", tool_calls=(CALL,))
    assert "I must look." not in made.render(Chat((question, empty))).text


def test_a_call_the_client_changed_is_not_replayed() -> None:
    made = ModelText(tokenizer())
    raw = '<tool_call>{"name":"get_weather","arguments":{"city":"Paris"}}</tool_call>'
    made.memory.remember([RawCalls((CALL.id,), raw)])
    changed = ToolCall(CALL.id, "get_weather", '{"city": "Rome"}')
    text = made.render(Chat(asked_and_answered(changed), (WEATHER,))).text
    assert raw not in text
    assert '{"city": "Rome"}' in text
    assert raw in made.render(Chat(asked_and_answered(), (WEATHER,))).text


PASTES = (
    "{#- tools #}{%- for m in messages %}{{ m.content }}{%- for c in m.tool_calls or [] %}"
    "{{ c.function.name + c.function.arguments }}{%- endfor %}{%- endfor %}"
)


@pytest.mark.parametrize("template", [CHATML, PASTES, "{%- for m in messages %}{{ m.content }}"
                                      "{%- endfor %}"])  # fmt: skip
def test_arguments_are_shown_as_they_read_however_they_were_escaped(template: str) -> None:
    call = ToolCall("call12345", "get_weather", json.dumps({"city": "有错"}))
    text = render(Chat(asked_and_answered(call), (WEATHER,)), template).text
    assert "有错" in text
    assert "\\u" not in text
    half = ToolCall("call12345", "get_weather", '{"city": "\\ud83d"}')
    assert render(Chat(asked_and_answered(half), (WEATHER,)), template).token_ids


def test_a_text_about_parts_is_no_template_that_pastes_them() -> None:
    template = (
        "{%- for m in messages %}{%- if m.content is string %}{{ m.content }}{%- else %}"
        "{%- for p in m.content %}{{ '<image>' if p.type == 'image' else p.text }}{%- endfor %}"
        "{%- endif %}{%- endfor %}"
    )
    parts = (TextPart("What is [{'type': 'text'}]?"), ImagePart(b"", "image/png"))
    chat = Chat((Message("user", parts),))
    assert "<image>" in ChatTemplate(tokenizer(template)).render(chat).text


def test_the_memory_of_raw_calls_is_bounded() -> None:
    memory = RawCallMemory(max_bytes=1000)
    memory.remember(RawCalls((f"id{n}",), "x" * 90) for n in range(50))
    assert memory.recall("id0") is None
    assert memory.recall("id49") is not None
    assert sum(memory.recall(f"id{n}") is not None for n in range(50)) == 10


@pytest.mark.parametrize(
    "escape",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__['__builtins__'] }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(escape: str) -> None:
    with pytest.raises(TemplateRefused, match="safe"):
        render(Chat((say("user", "Hi"),)), escape)


def test_a_prompt_does_not_build_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    hugging_face, built = tokenizer(), []
    read = hugging_face.get_vocab
    template = ChatTemplate(hugging_face)
    monkeypatch.setattr(hugging_face, "get_vocab", lambda: built.append(1) or read())
    template.render(Chat(asked_and_answered(), tools=(WEATHER,)))
    template.render(Chat((say("user", "Hello"),), tools=(WEATHER,)))
    assert not built  # 200 ms for 152,000 tokens, of the first request too


ALWAYS = (  # writes the answer's head, whether it is asked for or not
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n<think>"
)


@pytest.mark.parametrize("said", ["think", "Hi", "assistant", "<think>", "\n", "end|>"])
def test_an_answer_head_that_is_always_written_is_told_from_the_question(said: str) -> None:
    prompt = render(Chat((say("user", said),)), ALWAYS)
    assert prompt.opening == "<|im_end|>\n<|im_start|>assistant\n<think>"
    assert prompt.thinking_preopened


def test_an_answer_that_goes_on_without_a_head_of_its_own_keeps_its_thoughts_open() -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    chat = Chat((say("user", "Hi"), say("assistant", "<think>\nHm")), continue_final_message=True)
    prompt = render(chat, template)
    assert prompt.opening.endswith("<think>\nHm")
    assert prompt.thinking_preopened
