"""PyPI's `ollama`: lists, chats, prompts, tools, schemas, vectors and errors."""

from __future__ import annotations

import base64

import pytest
from client_server import ClientServer
from pydantic import BaseModel
from scripted_backend import EMBEDDER, EMBEDDING_WIDTH, MODEL, calls, text, tool_call

from swiftlm_proto import messages as m

ollama = pytest.importorskip("ollama", reason="ollama is not installed; see requirements.txt")
pytestmark = pytest.mark.client("ollama")

USER = {"role": "user", "content": "hi"}


@pytest.fixture
def client(server: ClientServer):
    return ollama.Client(host=server.url)


def test_streamed_and_whole_chat_say_the_same(client):
    whole = client.chat(MODEL, messages=[USER])
    pieces = list(client.chat(MODEL, messages=[USER], stream=True))
    assert "".join(piece.message.content for piece in pieces) == whole.message.content
    assert whole.message.content == "Hello, world!"
    assert pieces[-1].done
    assert pieces[-1].eval_count == whole.eval_count == 4


def test_a_python_function_goes_round_as_a_tool(client, server):
    def weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: Its name.
        """
        return f"cold in {city}"

    server.backend.scripts = {
        "weather?": calls(m.Delta(reasoning="hm"), *tool_call("weather", '{"city"', ':"Oslo"}')),
        "cold in Oslo": text("Wear a coat."),
    }
    messages = [{"role": "user", "content": "weather?"}]
    reply = client.chat(MODEL, messages=messages, tools=[weather], think=True)
    [call] = reply.message.tool_calls
    assert reply.message.thinking == "hm"
    result = {"role": "tool", "content": weather(**call.function.arguments)}
    result["tool_name"] = call.function.name
    again = client.chat(MODEL, messages=[*messages, reply.message, result], tools=[weather])
    assert again.message.content == "Wear a coat."


def test_a_schema_and_an_image_reach_the_model(client, server):
    class City(BaseModel):
        name: str

    server.backend.default = text('{"name": "Oslo"}')
    png = base64.b64decode(base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)))
    reply = client.chat(
        MODEL,
        messages=[{**USER, "images": [base64.b64encode(png).decode()]}],
        format=City.model_json_schema(),
        options={"temperature": 0, "num_ctx": 2048},
    )
    assert City.model_validate_json(reply.message.content).name == "Oslo"
    [request] = server.backend.requests
    assert request.constraint.json_schema
    assert request.chat.messages[0].parts[1].image.content == png


def test_prompts_are_generated(client):
    assert client.generate(MODEL, "why?", system="Be brief.").response == "Hello, world!"
    pieces = client.generate(MODEL, "why?", raw=True, stream=True)
    assert "".join(piece.response for piece in pieces) == "Hello, world!"
    assert client.generate(MODEL).done_reason == "load"


def test_models_are_listed_shown_and_running(client):
    assert [model.model for model in client.list().models] == [MODEL, EMBEDDER]
    shown = client.show(MODEL)
    assert "completion" in shown.capabilities
    assert client.ps().models[0].context_length == 4096


def test_texts_become_vectors(client):
    found = client.embed(EMBEDDER, ["a", "b"])
    assert [len(vector) for vector in found.embeddings] == [EMBEDDING_WIDTH] * 2
    assert len(client.embeddings(EMBEDDER, "a").embedding) == EMBEDDING_WIDTH


def test_errors_are_raised_as_the_library_knows_them(client, server):
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat("absent", messages=[USER])
    assert caught.value.status_code == 404
    server.backend.default = text("half", fault=m.Fault(kind=m.FaultKind.INTERNAL, message="died"))
    with pytest.raises(ollama.ResponseError, match="died"):
        list(client.chat(MODEL, messages=[USER], stream=True))
