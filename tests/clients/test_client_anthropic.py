"""The `anthropic` library: messages, streams, tools, thinking, counting, and its exceptions."""

from __future__ import annotations

import pytest
from client_server import KEY, ClientServer
from scripted_backend import MODEL, Script, calls, text, tool_call

from swiftlm_proto import messages as m
from swiftlmd.faults import Kind

anthropic = pytest.importorskip(
    "anthropic", reason="anthropic is not installed; see requirements.txt"
)
pytestmark = pytest.mark.client("anthropic")

READ = {"name": "read", "description": "Reads.", "input_schema": {"type": "object"}}


@pytest.fixture
def client(server: ClientServer):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def user(content: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": content}]


def test_streamed_and_whole_messages_say_the_same(client):
    whole = client.messages.create(model=MODEL, max_tokens=10, messages=user("hi"))
    with client.messages.stream(model=MODEL, max_tokens=10, messages=user("hi")) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert streamed == whole.content[0].text == final.content[0].text == "Hello, world!"
    assert final.usage.output_tokens == whole.usage.output_tokens == 4
    assert final.usage.cache_read_input_tokens == 4
    assert final.stop_reason == "end_turn"


def test_a_tool_goes_round_with_thinking(client, server):
    server.backend.scripts = {
        "read a": calls(m.Delta(reasoning="I read."), *tool_call("read", '{"path"', ': "a"}')),
        "contents": text("Done."),
    }
    options = {
        "model": MODEL,
        "max_tokens": 4096,
        "tools": [READ],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    messages = user("read a")
    with client.messages.stream(**options, messages=messages) as stream:
        first = stream.get_final_message()
    thinking, call = first.content
    assert thinking.thinking == "I read."
    assert (call.name, call.input) == ("read", {"path": "a"})
    assert first.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "contents"}
    messages += [{"role": "assistant", "content": first.content}, *user([result])]
    second = client.messages.create(**options, messages=messages)
    assert second.content[0].text == "Done."
    _, assistant, tool = server.backend.requests[-1].chat.messages
    assert assistant.reasoning == "I read."
    assert assistant.tool_calls[0].id == tool.tool_call_id == call.id


def test_a_tool_can_be_forced(client, server):
    server.backend.default = calls(*tool_call("read", "{}"))
    client.messages.create(
        model=MODEL,
        max_tokens=10,
        messages=user("x"),
        tools=[READ],
        tool_choice={"type": "tool", "name": "read"},
    )
    assert server.backend.requests[-1].chat.tool_name == "read"


def test_tokens_are_counted_and_models_listed(client):
    count = client.messages.count_tokens(model=MODEL, messages=user("hi"))
    assert count.input_tokens == len(b"<user>hi")
    assert client.models.list().data[0].id == MODEL
    assert client.models.retrieve(MODEL).display_name == MODEL


@pytest.mark.parametrize(
    ("kind", "exception"),
    [
        (Kind.INVALID, "BadRequestError"),
        (Kind.CONTEXT_TOO_LONG, "BadRequestError"),
        (Kind.BUSY, "RateLimitError"),
        (Kind.INTERNAL, "InternalServerError"),
        (Kind.NOT_ENOUGH_MEMORY, "InternalServerError"),
    ],
)
def test_faults_raise_the_class_that_the_caller_expects(client, server, kind, exception):
    server.backend.default = Script(fault=m.Fault(kind=kind, message="why"))
    with pytest.raises(getattr(anthropic, exception)) as caught:
        client.messages.create(model=MODEL, max_tokens=10, messages=user("x"))
    assert "why" in caught.value.message
    with (
        pytest.raises(getattr(anthropic, exception)),
        client.messages.stream(model=MODEL, max_tokens=10, messages=user("x")) as stream,
    ):
        stream.get_final_message()


def test_a_fault_inside_a_stream_raises(client, server):
    server.backend.default = text("half", fault=m.Fault(kind=Kind.INTERNAL, message="died"))
    with (
        pytest.raises(anthropic.APIError, match="died"),
        client.messages.stream(model=MODEL, max_tokens=10, messages=user("x")) as stream,
    ):
        stream.get_final_message()


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="claude-9", max_tokens=10, messages=user("x"))


@pytest.mark.parametrize("how", ["api_key", "auth_token"])
def test_both_kinds_of_key_open_and_wrong_ones_raise(locked_server, how):
    good = anthropic.Anthropic(base_url=locked_server.url, max_retries=0, **{how: KEY})
    assert good.models.list().data
    bad = anthropic.Anthropic(base_url=locked_server.url, max_retries=0, **{how: "no"})
    with pytest.raises(anthropic.AuthenticationError):
        bad.messages.create(model=MODEL, max_tokens=10, messages=user("x"))
