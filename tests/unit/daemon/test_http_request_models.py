"""Bodies to engine requests: the rules that every OpenAI dialect shares."""

from __future__ import annotations

import json

import pytest

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.http import sampling
from swiftlmd.http.chat import ChatRequest, to_chat, to_engine
from swiftlmd.http.completions import CompletionRequest
from swiftlmd.http.images import ImageLoader
from swiftlmd.http.response_store import ResponseStore
from swiftlmd.http.responses_request import ResponsesRequest
from swiftlmd.http.schema import parse

USER = {"role": "user", "content": "hi"}


class Parts:
    options = HttpOptions()
    images = ImageLoader(HttpOptions(max_images=2))


async def engine(**body: object) -> m.GenerateRequest:
    given = {"messages": [USER], **body}
    return await to_engine(parse(ChatRequest, json.dumps(given).encode()), Parts)


async def refusal(**body: object) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await engine(**body)
    return caught.value


async def test_every_sampling_field_reaches_the_engine():
    request = await engine(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        repetition_penalty=1.1,
        repetition_context_size=64,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        xtc_probability=0.1,
        xtc_threshold=0.2,
        seed=2**64 - 1,
        logit_bias={"50256": -100, "7": 3},
        min_tokens=2,
        ignore_eos=True,
        stop_token_ids=[1, 2],
    )
    assert request.sampling == m.Sampling(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        repetition_penalty=1.1,
        repetition_context=64,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        xtc_probability=0.1,
        xtc_threshold=0.2,
        seed=2**64 - 1,
        logit_bias={50256: -100.0, 7: 3.0},
    )
    assert (request.min_tokens, request.ignore_eos) == (2, True)
    assert request.stop_token_ids == [1, 2]
    sent = m.GenerateRequest.parse(bytes(request))
    assert sent.sampling.seed == 2**64 - 1
    assert sent.sampling.logit_bias == {50256: -100.0, 7: 3.0}


async def test_nothing_given_leaves_everything_to_the_model():
    request = await engine()
    assert request.sampling == m.Sampling()
    assert request.max_tokens is None
    assert request.chat.enable_thinking is None
    assert request.constraint is None


async def test_an_empty_nucleus_is_the_likeliest_token():
    request = await engine(top_p=0)
    assert (request.sampling.top_p, request.sampling.top_k) == (None, 1)


async def test_minus_one_switches_top_k_off():
    assert (await engine(top_k=-1)).sampling.top_k == 0


async def test_the_newer_name_of_the_token_limit_wins():
    assert (await engine(max_tokens=5)).max_tokens == 5
    assert (await engine(max_tokens=5, max_completion_tokens=7)).max_tokens == 7


async def test_a_limit_beyond_all_contexts_still_fits_on_the_wire():
    request = await engine(max_tokens=10**30)
    assert bytes(request)
    assert request.max_tokens >= 2**31 - 1


@pytest.mark.parametrize(
    ("stop", "expected"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ("", []), (["", "x"], ["x"]), ([], []), (None, [])],
)
async def test_stop_is_a_string_or_a_list(stop, expected):
    assert (await engine(stop=stop)).stop == expected


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (300, 300),
        (0, 0),
        (-1, -1),
        (-0.5, -1),
        ("300", 300),
        ("-1", -1),
        ("5m", 300),
        ("1h30m", 5400),
        ("10s", 10),
        ("-1s", -1),
        (None, None),
        ("", None),
        (1e300, 2**31 - 1),
        ("999999999h", 2**31 - 1),
        ("1.5h", 5400),
    ],
)
def test_keep_alive_is_seconds_or_a_duration(given, seconds):
    assert sampling.keep_alive_s(given) == seconds


@pytest.mark.parametrize("given", ["soon", "5 m", "m", "--1", "1.5.5h", "\u0665m"])
def test_other_durations_are_refused(given):
    with pytest.raises(ServiceError) as caught:
        sampling.keep_alive_s(given)
    assert caught.value.param == "keep_alive"


@pytest.mark.parametrize(
    ("body", "thinking", "effort", "budget"),
    [
        ({"reasoning_effort": "high"}, True, "high", None),
        ({"reasoning": {"effort": "low"}}, True, "low", None),
        ({"reasoning_effort": "minimal"}, None, "minimal", None),
        ({"reasoning_effort": "none"}, False, "", None),
        ({"reasoning": {"enabled": False}}, False, "", None),
        ({"reasoning": {"max_tokens": 512}}, None, "", 512),
        ({"enable_thinking": False}, False, "", None),
        ({"enable_thinking": False, "reasoning_effort": "high"}, False, "high", None),
        ({"thinking": {"type": "disabled"}}, False, "", None),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, True, "", 9),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False, "", None),
        ({"thinking_budget": 0}, None, "", 0),
    ],
)
async def test_every_spelling_of_thinking_is_understood(body, thinking, effort, budget):
    request = await engine(**body)
    assert request.chat.enable_thinking is thinking
    assert request.chat.reasoning_effort == effort
    assert request.thinking_budget == budget


async def test_template_kwargs_keep_their_json_types():
    request = await engine(chat_template_kwargs={"a": 1, "b": [True, None], "c": "x"})
    kwargs = {key: json.loads(value) for key, value in request.chat.template_kwargs.items()}
    assert kwargs == {"a": 1, "b": [True, None], "c": "x"}


@pytest.mark.parametrize(
    ("body", "kind", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", True),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": 1}}}},
            "json_schema",
            '{"a": 1}',
        ),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_grammar": "start: A"}, "lark", "start: A"),
        ({"guided_json": {"a": 1}}, "json_schema", '{"a": 1}'),
        ({"structured_outputs": {"choice": ["x", "y"]}}, "choices", m.Choices(values=["x", "y"])),
        ({"structured_outputs": {"json": '{"a": 1}'}}, "json_schema", '{"a": 1}'),
    ],
)
async def test_every_spelling_of_a_constraint_is_understood(body, kind, value):
    assert getattr((await engine(**body)).constraint, kind) == value


@pytest.mark.parametrize("name", ["json", "regex", "grammar", "choice"])
@pytest.mark.parametrize("prefix", ["guided_", "structured_outputs."])
async def test_a_constraint_that_is_empty_is_refused_by_name(name, prefix):
    empty = [] if name == "choice" else ""
    nested = prefix.endswith(".")
    body = {"structured_outputs": {name: empty}} if nested else {f"guided_{name}": empty}
    error = await refusal(**body)
    assert (error.status, error.param) == (400, prefix + name)


async def test_a_schema_without_keywords_still_asks_for_json():
    assert (await engine(guided_json={})).constraint.json_schema == "{}"
    shape = {"type": "json_object", "schema": {}}
    assert (await engine(response_format=shape)).constraint.json_schema == "{}"


async def test_two_constraints_at_once_are_refused():
    assert (await refusal(guided_regex="a", guided_choice=["b"])).status == 400


async def test_history_with_tools_reasoning_and_broken_arguments_is_carried_over():
    chat = (
        await engine(
            messages=[
                {"role": "developer", "content": "d"},
                {"role": "user", "content": [{"type": "text", "text": "u"}], "name": "ann"},
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "why",
                    "tool_calls": [
                        {"id": "1", "function": {"name": "f", "arguments": '{"broken'}},
                        {"id": "2", "function": {"name": "g", "arguments": {"x": 1}}},
                    ],
                },
                {"role": "tool", "tool_call_id": "1", "content": "r"},
                {"role": "user", "content": ""},
            ]
        )
    ).chat
    assert [x.role for x in chat.messages] == ["system", "user", "assistant", "tool", "user"]
    assert chat.messages[1].name == "ann"
    assert chat.messages[2].reasoning == "why"
    assert [c.arguments for c in chat.messages[2].tool_calls] == ['{"broken', '{"x": 1}']
    assert chat.messages[3].tool_call_id == "1"


async def test_images_that_are_too_large_together_are_refused(monkeypatch):
    part = {"type": "image_url", "image_url": {"url": "data:image/gif,GIF89a" + "x" * 94}}
    images = [{"role": "user", "content": [part] * 2}]
    small = ImageLoader(HttpOptions(max_images_bytes=200))
    monkeypatch.setattr(Parts, "images", small)
    assert len((await engine(messages=images)).chat.messages[0].parts) == 2
    monkeypatch.setattr(Parts, "images", ImageLoader(HttpOptions(max_images_bytes=199)))
    fault = await refusal(messages=images)
    assert fault.status == 400
    assert fault.param == "messages.0.content.1"
    assert "send smaller ones" in str(fault)


async def test_too_many_images_are_refused():
    part = {"type": "image_url", "image_url": {"url": "data:image/gif,GIF89a"}}
    images = [{"role": "user", "content": [part] * 2}]
    assert len((await engine(messages=images)).chat.messages[0].parts) == 2
    error = await refusal(messages=[{"role": "user", "content": [part] * 3}])
    assert error.param == "messages.0.content.2"


async def test_an_allowed_list_hides_the_other_tools():
    tools = [{"type": "function", "function": {"name": name}} for name in ("a", "b")]
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "b"}}]}
    request = await engine(
        tools=tools, tool_choice={"type": "allowed_tools", "allowed_tools": allowed}
    )
    assert [tool.name for tool in request.chat.tools] == ["b"]
    assert request.chat.tool_choice == m.ToolChoice.REQUIRED


@pytest.mark.parametrize("tool", [{"function": "b"}, {"function": {"name": []}}, {"name": "c"}, {}])
async def test_an_allowed_tool_that_is_none_of_the_tools_is_refused(tool):
    tools = [{"type": "function", "function": {"name": "b"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"tools": [tool]}}
    assert (await refusal(tools=tools, tool_choice=choice)).param == "tool_choice"


async def test_a_tool_without_parameters_takes_none():
    body = {"messages": [USER], "tools": [{"type": "function", "function": {"name": "now"}}]}
    chat = await to_chat(parse(ChatRequest, json.dumps(body).encode()), Parts)
    assert json.loads(chat.tools[0].parameters) == {"type": "object", "properties": {}}


async def test_raw_text_can_be_asked_for_where_no_tools_are():
    assert (await engine(reasoning_format="none")).raw_text
    tools = [{"type": "function", "function": {"name": "a"}}]
    assert (await refusal(reasoning_format="none", tools=tools)).kind is Kind.UNSUPPORTED


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_does_not_have_are_refused(number):
    with pytest.raises(ServiceError) as caught:
        parse(ChatRequest, f'{{"messages": [], "temperature": {number}}}'.encode())
    assert caught.value.status == 400


def test_an_error_names_the_field_and_not_the_branch_of_a_union():
    raw = json.dumps({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]})
    with pytest.raises(ServiceError) as caught:
        parse(ChatRequest, raw.encode())
    assert caught.value.param.startswith("messages.0.content")
    assert "ContentPart" not in caught.value.message


def test_the_store_is_bounded_by_bytes_and_forgets_what_was_used_longest_ago():
    store = ResponseStore(max_responses=10, max_bytes=3000)
    for name in ("a", "b", "c"):
        store.put({"id": name, "output": [{"text": "x" * 800}]}, [])
        store.get("a")
    store.put({"id": "d", "output": [{"text": "x" * 800}]}, [])
    assert store.get("b") is None
    assert store.get("a") is not None
    assert store.size_bytes <= 3000
    store.put({"id": "huge", "output": [{"text": "x" * 4000}]}, [])
    assert store.get("huge") is None
    for name in ("a", "c", "d"):
        assert store.remove(name)
    assert (len(store), store.size_bytes) == (0, 0)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens", "num_predict"])
@pytest.mark.parametrize("value", [-1, -2, 0, None, -1.0])
async def test_off_values_of_other_servers_are_no_limit(field: str, value: float | None):
    assert (await engine(**{field: value})).max_tokens is None


@pytest.mark.parametrize("field", ["max_tokens", "num_predict", "repeat_last_n", "seed"])
async def test_a_number_that_is_no_off_value_is_refused_by_the_name_that_was_sent(field: str):
    assert field in (await refusal(**{field: -7})).message


@pytest.mark.parametrize("field", ["max_tokens", "max_output_tokens"])
async def test_minus_one_is_no_limit_on_completions_and_responses(field: str):
    model = CompletionRequest if field == "max_tokens" else ResponsesRequest
    given = "prompt" if field == "max_tokens" else "input"
    body = parse(model, json.dumps({given: "a", field: -1}).encode())
    assert getattr(body, field) is None


async def test_minus_one_is_any_seed():
    assert (await engine(seed=-1)).sampling.seed is None


async def test_synonyms_of_llama_cpp_and_ollama_work():
    request = await engine(num_predict=7, repeat_penalty=1.2, repeat_last_n=33)
    assert request.max_tokens == 7
    assert (request.sampling.repetition_penalty, request.sampling.repetition_context) == (1.2, 33)
    assert (await engine(n_predict=9)).max_tokens == 9


async def test_a_penalty_looks_back_over_everything_or_not_at_all():
    everything = (await engine(repeat_penalty=1.2, repeat_last_n=-1)).sampling
    assert everything.repetition_context == 2**31 - 1
    assert (await engine(repeat_penalty=1.2, repeat_last_n=0)).sampling.repetition_penalty == 1.0


@pytest.mark.parametrize("field", ["num_ctx", "n_ctx"])
async def test_a_context_per_request_is_refused_by_name(field: str):
    assert field in (await refusal(**{field: 8192})).message
    with pytest.raises(ServiceError, match=field):
        parse(CompletionRequest, json.dumps({"prompt": "a", field: 8192}).encode())
    with pytest.raises(ServiceError, match=field):
        parse(ResponsesRequest, json.dumps({"input": "a", field: 8192}).encode())


async def test_prefix_goes_on_with_the_last_message():
    begun = {"role": "assistant", "content": "The", "prefix": True}
    assert (await engine(messages=[USER, begun])).chat.continue_final_message
    assert "messages.0.prefix" in (await refusal(messages=[begun, USER])).message
    assert "messages.1.prefix" in (await refusal(messages=[USER, {**USER, "prefix": True}])).message
