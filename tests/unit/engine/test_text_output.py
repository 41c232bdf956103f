"""Promises of the output parser: stops, thoughts, calls and finish reasons of one sequence."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parser_fixtures import Answer, PieceTexts
from text_tokenizers import CHATML, tokenizer

from swiftlm_engine.text import harmony
from swiftlm_engine.text.answer_format import AnswerFormat
from swiftlm_engine.text.chat import Chat, Message, TextPart, ToolSpec
from swiftlm_engine.text.emitter import Emitter, EmitterOptions
from swiftlm_engine.text.events import TextFinish
from swiftlm_engine.text.markers import first_marker
from swiftlm_engine.text.model_text import ModelText
from swiftlm_engine.text.output_parser import OutputOptions, OutputParser, ToolMode

WEATHER = ToolSpec(
    "get_weather",
    "",
    {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
)
TOOLS = (WEATHER, ToolSpec("get_time"))
HERMES = AnswerFormat('<think> <tool_call>\n{"name"', (), ("<tool_call>", "</tool_call>"))
HARMONY_TOKENS = (
    "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"
)  # fmt: skip
HARMONY = AnswerFormat("", HARMONY_TOKENS, HARMONY_TOKENS)


def run(
    text: str,
    answer_format: AnswerFormat = HERMES,
    reason: TextFinish = TextFinish.STOP,
    opening: str = "",
    cuts: tuple[int, ...] = (),
    **options: object,
) -> tuple[Answer, OutputParser]:
    places = [0, *sorted({c % (len(text) + 1) for c in cuts}), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    wanted = OutputOptions(**{"tools": TOOLS, **options})
    parser = OutputParser(PieceTexts(pieces), wanted, answer_format, opening)
    answer = Answer()
    for token_id in range(len(pieces)):
        if not parser.stopped:
            answer.add(parser.push(token_id))
    answer.add(parser.finish(reason))
    return answer, parser


CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def test_thoughts_content_and_a_call_come_apart() -> None:
    answer, parser = run(f"<think>\nHm.\n</think>\n\nI look.\n{CALL}")
    assert (answer.reasoning, answer.content) == ("Hm.", "I look.")
    assert [c[1:] for c in answer.calls] == [["get_weather", '{"city": "Paris"}']]
    assert parser.finish_reason is TextFinish.TOOL_CALLS


def test_a_prompt_that_opened_the_thoughts_starts_inside_them() -> None:
    answer, _ = run("Hm.\n</think>\n\nYes.", opening="<|im_start|>assistant\n<think>\n")
    assert (answer.reasoning, answer.content) == ("Hm.", "Yes.")


def test_a_tag_further_down_in_the_answer_is_text() -> None:
    answer, _ = run("The tag <think> opens </think> thoughts.")
    assert (answer.reasoning, answer.content) == ("", "The tag <think> opens </think> thoughts.")


def test_thoughts_cut_off_are_thoughts() -> None:
    answer, parser = run("<think>\nI was ab", reason=TextFinish.LENGTH)
    assert (answer.reasoning, answer.content) == ("I was ab", "")
    assert parser.finish_reason is TextFinish.LENGTH


def test_thoughts_may_stay_in_the_content() -> None:
    answer, _ = run("<think>\nHm.\n</think>\n\nYes.", split_reasoning=False)
    assert (answer.reasoning, answer.content) == ("", "<think>\nHm.\n</think>\n\nYes.")


def test_harmony_thoughts_kept_in_the_content_stand_between_tags() -> None:
    text = HARMONY.mark(
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final"
    )
    answer, _ = run(text + HARMONY.mark("<|message|>Yes."), HARMONY, split_reasoning=False)
    assert answer.content == "<think>\nHm.\n</think>\n\nYes."


@pytest.mark.parametrize("options", [{"tools": ()}, {"tool_mode": ToolMode.OFF}])
def test_harmony_without_tools_shows_a_call_as_text(options: dict[str, object]) -> None:
    text = "<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{}<|call|>"
    answer, parser = run(HARMONY.mark(text), HARMONY, **options)
    assert (answer.calls, answer.content) == ([], "{}")
    assert parser.finish_reason is TextFinish.STOP


def test_thoughts_do_not_open_behind_a_call_that_was_none() -> None:
    llama3 = AnswerFormat("<think> <|python_tag|>", (), ())
    text = '{"city": 1}<think>x'
    for cuts in ((), tuple(range(len(text)))):
        answer, _ = run(text, llama3, cuts=cuts)
        assert (answer.content, answer.reasoning) == (text, "")


def test_raw_shows_everything_as_content() -> None:
    answer, parser = run(f"<think>a</think>{CALL}", raw=True)
    assert answer.content == f"<think>a</think>{CALL}"
    assert parser.finish_reason is TextFinish.STOP


def test_without_tools_a_call_is_text() -> None:
    assert run(CALL, tools=())[0].content == CALL
    assert run(CALL, tool_mode=ToolMode.OFF)[0].content == CALL


def test_a_stop_string_ends_the_text_and_is_named() -> None:
    answer, parser = run("one STOP two", stop=("STOP", "two"), cuts=(6,))
    assert answer.content == "one "
    assert (parser.stop_sequence, parser.finish_reason) == ("STOP", TextFinish.STOP)


def test_thoughts_that_come_again_stand_apart() -> None:
    first, second = (f"<|channel|>analysis<|message|>{t}<|end|><|start|>assistant" for t in "AB")
    text = HARMONY.mark(f"{first}{second}<|channel|>final<|message|>Yes.")
    for cuts in ((), range(len(text))):
        answer, _ = run(text, HARMONY, cuts=tuple(cuts))
        assert (answer.reasoning, answer.content) == ("A\nB", "Yes.")
    answer, _ = run(f"<think>A</think>{CALL}<think>B</think>Yes.")
    assert answer.reasoning == "A\nB"


@pytest.mark.parametrize("cuts", [(), range(200)])
def test_a_stop_string_is_looked_for_where_the_client_sees_text(cuts: Sequence[int]) -> None:
    """Not in thoughts, not in the markup behind them, not in a call."""
    text = f"<think>\nIs it STOP?\n\nHm.\n</think>\n\nI look.{CALL}\nFoun"
    for stop in ("STOP", "\n\n", "}}\n<", "Paris", "I look.\n"):
        answer, parser = run(text, stop=(stop,), cuts=tuple(cuts))
        assert answer.reasoning == "Is it STOP?\n\nHm."
        assert answer.content.startswith("I look.")
        assert [call[2] for call in answer.calls] == ['{"city": "Paris"}']
        assert parser.stop_sequence is None
    answer, parser = run(text.replace("look", "STOP"), stop=("STOP",), cuts=tuple(cuts))
    assert (answer.content, answer.calls, parser.stop_sequence) == ("I ", [], "STOP")


@pytest.mark.parametrize("stop", ["</think>", "</tool_call>", "x</think>", "</think>\n\nI"])
@pytest.mark.parametrize("cuts", [(), range(200)])
def test_markup_of_the_model_is_a_stop_string_where_it_is_named(
    stop: str, cuts: Sequence[int]
) -> None:
    answer, parser = run(f"<think>\nx</think>\n\nI{CALL} STOP", stop=(stop,), cuts=tuple(cuts))
    assert parser.stop_sequence == stop
    assert answer.reasoning == ("" if stop.startswith("x") else "x")
    assert [call[1] for call in answer.calls] == ["get_weather"] * ("tool_call" in stop)


def test_a_control_token_is_part_of_a_stop_string_by_its_spelling() -> None:
    controls = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    answer_format = AnswerFormat(CHATML, controls, controls)
    text = answer_format.mark("one<tool_call>two")
    for stop in ("e<tool_call>t", "<tool_call>", "l>two"):
        answer, parser = run(text, answer_format, tools=(), stop=(stop,))
        assert parser.stop_sequence == stop
        assert answer.content == "one<tool_call>two".partition(stop)[0]


@given(
    st.lists(
        st.sampled_from(["<think>", "</think>\n\n", "a", "b", " ", "\n", CALL, "<"]), max_size=9
    ),
    st.lists(st.sampled_from(["a", "ab", "\n", " a", "b<", "aa b", "}"]), min_size=1, max_size=3),
)
def test_a_stop_string_does_not_depend_on_the_pieces(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    whole, one = run(text, stop=tuple(stops))
    streamed, other = run(text, stop=tuple(stops), cuts=tuple(range(len(text))))
    assert (whole.content, whole.reasoning) == (streamed.content, streamed.reasoning)
    assert [c[1:] for c in whole.calls] == [c[1:] for c in streamed.calls]
    assert (one.stop_sequence, one.finish_reason) == (other.stop_sequence, other.finish_reason)
    free, _ = run(text)
    assert free.content.startswith(whole.content)
    if not whole.calls:
        assert not any(stop in whole.content for stop in stops)
        assert (one.stop_sequence is not None) == any(stop in free.content for stop in stops)


def test_a_stop_string_met_at_the_limit_is_a_stop() -> None:
    _, parser = run("one STOP", stop=("STOP",), reason=TextFinish.LENGTH)
    assert parser.finish_reason is TextFinish.STOP


def test_one_call_is_enough_where_parallel_calls_are_off() -> None:
    answer, parser = run(f"{CALL}\n{CALL}", cuts=(len(CALL),), parallel_tool_calls=False)
    assert len(answer.calls) == 1
    assert parser.stopped
    assert parser.finish_reason is TextFinish.TOOL_CALLS


def test_one_call_is_enough_even_when_two_come_at_once() -> None:
    answer, _ = run(f"{CALL}\n{CALL}", parallel_tool_calls=False)
    assert len(answer.calls) == 1


def test_parallel_calls_have_their_own_index_and_id() -> None:
    answer, _ = run(f"{CALL}\n{CALL}")
    assert len({call[0] for call in answer.calls}) == 2


def test_arguments_arrive_as_they_are_written() -> None:
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Pa'
    parser = OutputParser(PieceTexts([text, "ris"]), OutputOptions(tools=TOOLS), HERMES)
    answer = Answer()
    answer.add(parser.push(0))
    assert answer.calls[0][1:] == ["get_weather", '{"city": "Pa']
    answer.add(parser.push(1))
    assert answer.calls[0][2] == '{"city": "Paris'


def test_an_unknown_tool_is_shown_only_when_its_call_is_complete() -> None:
    text = '<tool_call>{"name": "launch", "arguments": {"at": "dawn"}'
    parser = OutputParser(PieceTexts([text, "}</tool_call>"]), OutputOptions(tools=TOOLS), HERMES)
    assert parser.push(0) == []
    answer = Answer()
    answer.add(parser.push(1))
    assert answer.calls[0][1:] == ["launch", '{"at": "dawn"}']


def test_a_call_cut_by_the_limit_says_length() -> None:
    text = f'{CALL}\n<tool_call>{{"name": "get_time", "argum'
    answer, parser = run(text, reason=TextFinish.LENGTH, stream_arguments=False)
    assert len(answer.calls) == 1
    assert answer.content == ""
    assert parser.finish_reason is TextFinish.LENGTH


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>get me the weather</tool_call>",
        "<tool_call></tool_call>",
        '<tool_call>{"name": 5}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": [1]}</tool_call> and more',
        '<tool_call>\n{"arguments": {"city": "Paris"}}\n</tool_call>',
    ],
)
def test_an_unreadable_call_is_text(text: str) -> None:
    answer, parser = run(text)
    assert answer.content == text
    assert parser.finish_reason is TextFinish.STOP


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r'{"city": "\d+\.\w"}', r'{"city": "\\d+\\.\\w"}'),
        ('{"city": "two\nlines\t"}', r'{"city": "two\nlines\t"}'),
        ("{'city': 'Par\"is'}", r'{"city": "Par\"is"}'),
        ('{"city": "Paris", "days": 3,}', '{"city": "Paris", "days": 3}'),
        ('{"a": True, "b": [None, False,]}', '{"a": true, "b": [null, false]}'),
        (r'{"city": "\u00e9 \uZZ"}', r'{"city": "\u00e9 \\uZZ"}'),
    ],
)
def test_what_models_get_wrong_in_json_is_mended(written: str, meant: str) -> None:
    text = f'<tool_call>{{"name": "get_weather", "arguments": {written}}}</tool_call>'
    for cuts in ((), tuple(range(len(text)))):
        assert run(text, cuts=cuts)[0].calls[0][2] == meant


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}',
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        '{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}',
        '{"function": "get_weather", "arguments": {"city": "Paris"}}',
        '[{"arguments": {"city": "Paris"}, "name": "get_weather"}]',
    ],
)
def test_the_shapes_of_a_json_call(call: str) -> None:
    answer, _ = run(f"<tool_call>{call}</tool_call>")
    assert [c[1:] for c in answer.calls] == [["get_weather", '{"city": "Paris"}']]


def test_bare_json_is_a_call_only_where_one_is_forced() -> None:
    text = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
    assert run(text)[0].content == text
    answer, _ = run(text, tool_mode=ToolMode.FORCED)
    assert answer.calls[0][1:] == ["get_weather", '{"city": "Paris"}']


def test_forced_bare_json_that_is_no_call_is_text_at_once() -> None:
    text = '{"answer": 42}'
    pieces = PieceTexts(['{"answer"', ": 42}"])
    parser = OutputParser(pieces, OutputOptions(tools=TOOLS, tool_mode=ToolMode.FORCED), HERMES)
    answer = Answer()
    answer.add(parser.push(0))
    answer.add(parser.push(1))
    answer.add(parser.finish(TextFinish.STOP))
    assert (answer.content, answer.calls) == (text, [])


def test_white_space_at_the_end_of_an_answer_is_kept() -> None:
    assert run("Yes.\n\n", cuts=(4, 5))[0].content == "Yes.\n\n"


def thoughts_of(count: int, budget: int | None) -> OutputParser:
    pieces = PieceTexts(["<think>", *["hm "] * count, "</think>", "Yes."])
    parser = OutputParser(pieces, OutputOptions(thinking_budget=budget), HERMES)
    for token_id in range(len(pieces.pieces)):
        parser.push(token_id)
    return parser


def test_reasoning_tokens_are_counted_without_the_answer() -> None:
    assert thoughts_of(5, None).reasoning_tokens == 6  # with the opening tag


def test_a_spent_thinking_budget_asks_for_the_end_of_the_thoughts() -> None:
    pieces = PieceTexts(["<think>", "a", "b", "c"])
    parser = OutputParser(pieces, OutputOptions(thinking_budget=3), HERMES)
    asked = []
    for token_id in range(4):
        parser.push(token_id)
        asked.append(parser.should_close_thinking)
    assert asked == [False, False, True, True]
    assert not thoughts_of(5, 3).should_close_thinking


def test_the_parser_of_a_model_reads_its_tokens_and_its_prompt() -> None:
    made = ModelText(tokenizer())
    chat = Chat((Message("user", (TextPart("Hi"),)),), TOOLS, enable_thinking=True)
    parser = made.output(OutputOptions(tools=TOOLS), made.render(chat))
    answer = Answer()
    for token_id in tokenizer().encode(f"Hm 🌸.\n</think>\n\n{CALL}", add_special_tokens=False):
        answer.add(parser.push(token_id))
    answer.add(parser.finish(TextFinish.STOP))
    assert (answer.reasoning, answer.content) == ("Hm 🌸.", "")
    assert answer.calls[0][1:] == ["get_weather", '{"city": "Paris"}']


def test_a_special_token_named_as_a_stop_string_stops() -> None:
    made = ModelText(tokenizer())
    parser = made.output(OutputOptions(stop=("<|im_start|>",)))
    ids = tokenizer().encode("Yes.<|im_start|>user", add_special_tokens=False)
    answer = Answer()
    for token_id in ids:
        answer.add(parser.push(token_id))
    assert answer.content == "Yes."
    assert parser.stop_sequence == "<|im_start|>"


MARKUP = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=", "<parameter="),
    *("</function>", "</parameter>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    *('{"name": "', "get_time", '", "', 'arguments": ', "{", "}", "}}", "[", "]", "\\", '"', "'"),
    *(
        "\n",
        ">",
        "x",
        " ",
        "1.5",
        ",",
        "[TOOL_CALLS]",
        "[ARGS]",
        "call:f{",
        '<|"|>',
        "<|tool_call>",
    ),
    *("<tool_call|>", "<|tool_call_start|>", "[f(a=", "1)]", "<|tool_call_end|>", "<|python_tag|>"),
    *(HARMONY.mark(token) for token in HARMONY_TOKENS),
    *("to=functions.get_time", "analysis", "final", "commentary"),
]
FORMATS = [
    HERMES,
    AnswerFormat("<tool_call>\n<function=", (), ()),
    AnswerFormat("<arg_key>", (), ()),
    AnswerFormat("[TOOL_CALLS]", (), ()),
    AnswerFormat("<|tool_call>", (), ()),
    AnswerFormat("<|tool_call_start|>", (), ()),
    AnswerFormat("<|python_tag|>", (), ()),
    HARMONY,
]


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.sampled_from(MARKUP) | st.text(max_size=3), max_size=25).map("".join),
    st.sampled_from(FORMATS),
    st.lists(st.integers(0, 200), max_size=6).map(tuple),
    st.sampled_from([TextFinish.STOP, TextFinish.LENGTH]),
    st.fixed_dictionaries(
        {
            "stream_arguments": st.booleans(),
            "tool_mode": st.sampled_from([ToolMode.AUTO, ToolMode.FORCED]),
        }
    ),
)
def test_any_text_in_any_pieces_gives_one_answer_and_never_an_error(
    text: str,
    answer_format: AnswerFormat,
    cuts: tuple[int, ...],
    reason: TextFinish,
    options: dict[str, object],
) -> None:
    def shown(*pieces: int) -> tuple[object, ...]:
        answer, parser = run(text, answer_format, reason, cuts=pieces, **options)
        calls = [call[1:] for call in answer.calls]
        return answer.content, answer.reasoning, calls, parser.finish_reason

    assert shown(*cuts) == shown()


class Looked(str):
    """A piece of text that counts the characters looked at for white space at its end."""

    looks: list[int] = []  # noqa: RUF012 - one count for a test

    def __radd__(self, before: str) -> "Looked":
        return Looked(str.__add__(before, self))

    def rstrip(self, chars: str | None = None) -> str:  # type: ignore[override]
        self.looks.append(len(self))
        return str.rstrip(self, chars)


@pytest.mark.parametrize("tell", ["reasoning", "content"])
def test_empty_lines_without_end_are_each_looked_at_once(
    tell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Looked, "looks", [])
    emitter = Emitter(EmitterOptions(trim_before_calls=True))
    getattr(emitter, tell)("a")
    for _ in range(500):
        getattr(emitter, tell)(Looked("\n"))
    getattr(emitter, tell)("b")
    shown = "".join(event.text for event in emitter.take())
    assert shown == "a" + "\n" * 500 + "b"
    assert sum(Looked.looks) == 500


def test_a_header_without_end_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []

    def search(text: str, *arguments: object) -> object:
        searched.append(len(text))
        return first_marker(text, *arguments)

    monkeypatch.setattr(harmony, "first_marker", search)
    answer, _ = run("words " * 500, HARMONY, cuts=tuple(range(0, 3000, 6)))
    assert answer.content == ("words " * 500).strip()
    assert sum(searched) < 3 * 3000
