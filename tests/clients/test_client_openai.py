"""The `openai` library: chat, tools, schemas, embeddings, responses, and its exceptions."""

from __future__ import annotations

import asyncio

import pytest
from client_server import KEY, ClientServer
from pydantic import BaseModel
from scripted_backend import EMBEDDER, EMBEDDING_WIDTH, MODEL, Script, calls, text, tool_call

from swiftlm_proto import messages as m
from swiftlmd.faults import Kind

openai = pytest.importorskip("openai", reason="openai is not installed; see requirements.txt")
pytestmark = pytest.mark.client("openai")

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


class City(BaseModel):
    name: str
    people: int


@pytest.fixture
def client(server: ClientServer):
    return openai.OpenAI(base_url=server.v1, api_key="none", max_retries=0)


def user(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def test_streamed_and_whole_chat_say_the_same(client):
    whole = client.chat.completions.create(model=MODEL, messages=user("hi"))
    chunks = list(client.chat.completions.create(model=MODEL, messages=user("hi"), stream=True))
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert streamed == whole.choices[0].message.content == "Hello, world!"
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_comes_once_in_the_trailer(client):
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=user("hi"),
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    counted = [chunk for chunk in chunks if chunk.usage is not None]
    assert counted == chunks[-1:]
    assert counted[0].usage.prompt_tokens_details.cached_tokens == 4


def test_a_tool_goes_round(client, server):
    server.backend.scripts = {
        "weather?": calls(*tool_call("weather", '{"city": ', '"Oslo"}')),
        "4 degrees": text("It is ", "cold."),
    }
    messages: list = user("weather?")
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=[WEATHER]) as stream:
        events = [event.type for event in stream]
        message = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.done" in events
    [call] = message.tool_calls
    assert call.function.arguments == '{"city": "Oslo"}'
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "4 degrees"}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])
    assert answer.choices[0].message.content == "It is cold."
    history = server.backend.requests[-1].chat.messages
    assert history[1].tool_calls[0].id == history[2].tool_call_id == call.id


def test_a_tool_can_be_forced(client, server):
    server.backend.default = calls(*tool_call("weather", "{}"))
    client.chat.completions.create(
        model=MODEL,
        messages=user("x"),
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        parallel_tool_calls=False,
    )
    chat = server.backend.requests[-1].chat
    assert (chat.tool_choice, chat.tool_name) == (m.ToolChoice.NAMED, "weather")
    assert chat.parallel_tool_calls is False


def test_a_schema_is_parsed_into_its_model(client, server):
    server.backend.default = text('{"name": "Oslo", ', '"people": 700000}')
    parsed = client.chat.completions.parse(model=MODEL, messages=user("x"), response_format=City)
    assert parsed.choices[0].message.parsed == City(name="Oslo", people=700000)
    assert "people" in server.backend.requests[-1].constraint.json_schema
    answer = client.responses.parse(model=MODEL, input="x", text_format=City)
    assert answer.output_parsed == City(name="Oslo", people=700000)


def test_embeddings_are_whole_although_the_library_asks_for_base64(client, server):
    reply = client.embeddings.create(model=EMBEDDER, input=["a", "b"])
    assert [len(item.embedding) for item in reply.data] == [EMBEDDING_WIDTH] * 2
    assert reply.data[1].embedding[:2] == [1.0, 1.125]
    plain = client.embeddings.create(model=EMBEDDER, input="a", encoding_format="float")
    assert plain.data[0].embedding == reply.data[0].embedding


def test_completions_and_models_answer(client):
    assert client.completions.create(model=MODEL, prompt=["a", "b"]).choices[1].index == 1
    assert client.models.list().data[0].id == MODEL
    assert client.models.retrieve(MODEL).id == MODEL


def test_responses_stream_and_continue(client, server):
    server.backend.scripts = {"go": calls(m.Delta(reasoning="hm"), *tool_call("shell", '{"a":1}'))}
    tool = {"type": "function", "name": "shell", "parameters": {"type": "object"}, "strict": False}
    with client.responses.stream(model=MODEL, input="go", tools=[tool]) as stream:
        kinds = {event.type for event in stream}
        first = stream.get_final_response()
    assert "response.function_call_arguments.done" in kinds
    call = first.output[-1]
    assert (call.name, call.arguments) == ("shell", '{"a":1}')
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "ok"}
    second = client.responses.create(
        model=MODEL, input=[output], previous_response_id=first.id, tools=[tool]
    )
    assert second.output_text == "Hello, world!"
    roles = [message.role for message in server.backend.requests[-1].chat.messages]
    assert roles == ["user", "assistant", "tool"]
    assert client.responses.retrieve(second.id).output_text == "Hello, world!"


@pytest.mark.parametrize(
    ("kind", "exception"),
    [
        (Kind.INVALID, "BadRequestError"),
        (Kind.CONTEXT_TOO_LONG, "BadRequestError"),
        (Kind.BUSY, "RateLimitError"),
        (Kind.NOT_ENOUGH_MEMORY, "InternalServerError"),
        (Kind.SHUTTING_DOWN, "InternalServerError"),
        (Kind.INTERNAL, "InternalServerError"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_faults_raise_the_class_that_the_caller_expects(client, server, kind, exception, stream):
    server.backend.default = Script(fault=m.Fault(kind=kind, message="why", param="p"))
    with pytest.raises(getattr(openai, exception)) as caught:
        client.chat.completions.create(model=MODEL, messages=user("x"), stream=stream)
    assert "why" in caught.value.message
    assert caught.value.body["code"]


def test_a_fault_inside_a_stream_raises_and_is_no_short_answer(client, server):
    server.backend.default = text("half", fault=m.Fault(kind=Kind.INTERNAL, message="died"))
    for start in (
        lambda: client.chat.completions.create(model=MODEL, messages=user("x"), stream=True),
        lambda: client.completions.create(model=MODEL, prompt="x", stream=True),
        lambda: client.responses.create(model=MODEL, input="x", stream=True),
    ):
        with pytest.raises(openai.APIError, match="died"):
            list(start())


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=user("x"))
    assert caught.value.code == "model_not_found"


def test_a_foreign_page_is_denied(client):
    with pytest.raises(openai.PermissionDeniedError):
        client.models.list(extra_headers={"Origin": "https://evil.example"})


def test_the_right_key_opens_and_a_wrong_one_raises(locked_server):
    good = openai.OpenAI(base_url=locked_server.v1, api_key=KEY, max_retries=0)
    assert good.models.list().data
    bad = openai.OpenAI(base_url=locked_server.v1, api_key="sk-wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        bad.models.list()


def test_what_cannot_fit_is_not_asked_again(server):
    patient = openai.OpenAI(base_url=server.v1, api_key="none", max_retries=3)
    fault = m.Fault(kind=Kind.NOT_ENOUGH_MEMORY, message="needs 21.4 GB")
    server.backend.default = Script(fault=fault)
    with pytest.raises(openai.InternalServerError):
        patient.chat.completions.create(model=MODEL, messages=user("x"))
    assert len(server.backend.requests) == 1


def test_leaving_a_stream_ends_the_generation(client, server):
    def hold(number: int) -> asyncio.Future[None] | None:
        return asyncio.get_running_loop().create_future() if number == 1 else None

    server.backend.default = text("one", "two", before=hold)
    with client.chat.completions.create(model=MODEL, messages=user("x"), stream=True) as stream:
        next(iter(stream))
    server.settle()
    assert server.backend.aborted == 1
