"""LangChain (`langchain-openai`): chat, streams, tools, structured output, embeddings."""

from __future__ import annotations

import pytest
from client_server import ClientServer
from pydantic import BaseModel, Field
from scripted_backend import EMBEDDER, EMBEDDING_WIDTH, MODEL, calls, text, tool_call

from swiftlm_proto import messages as m

langchain_openai = pytest.importorskip(
    "langchain_openai", reason="langchain-openai is not installed; see requirements.txt"
)
pytestmark = pytest.mark.client("LangChain")


class City(BaseModel):
    """A city."""

    name: str = Field(description="Its name.")


@pytest.fixture
def chat(server: ClientServer):
    return langchain_openai.ChatOpenAI(
        base_url=server.v1, api_key="none", model=MODEL, max_retries=0
    )


def test_streamed_and_whole_chat_say_the_same_and_count_once(chat):
    whole = chat.invoke("hi")
    streamed = None
    for chunk in chat.stream("hi", stream_usage=True):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed.content == whole.content == "Hello, world!"
    assert streamed.usage_metadata["total_tokens"] == whole.usage_metadata["total_tokens"] == 16


def test_a_tool_goes_round(chat, server):
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"cold in {city}"

    server.backend.scripts = {
        "weather?": calls(*tool_call("weather", '{"city"', ':"Oslo"}')),
        "cold in Oslo": text("Wear a coat."),
    }
    bound = chat.bind_tools([weather])
    messages = [HumanMessage("weather?")]
    reply = bound.invoke(messages)
    [call] = reply.tool_calls
    result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    assert bound.invoke([*messages, reply, result]).content == "Wear a coat."


def test_structured_output_by_schema_and_by_tool(chat, server):
    server.backend.default = text('{"name": "Oslo"}')
    assert chat.with_structured_output(City).invoke("x") == City(name="Oslo")
    assert server.backend.requests[-1].constraint.json_schema
    server.backend.default = calls(*tool_call("City", '{"name": "Rome"}'))
    by_tool = chat.with_structured_output(City, method="function_calling")
    assert by_tool.invoke("x") == City(name="Rome")
    assert server.backend.requests[-1].chat.tool_name == "City"


def test_embeddings_are_whole(server):
    embeddings = langchain_openai.OpenAIEmbeddings(
        base_url=server.v1, api_key="none", model=EMBEDDER, check_embedding_ctx_length=False
    )
    vectors = embeddings.embed_documents(["a", "b"])
    assert [len(vector) for vector in vectors] == [EMBEDDING_WIDTH] * 2


def other_chat(server: ClientServer, dialect: str):
    """A chat model of LangChain's that speaks another dialect than OpenAI's chat."""
    reason = f"langchain for {dialect} is not installed; see requirements.txt"
    if dialect == "responses":
        return langchain_openai.ChatOpenAI(
            base_url=server.v1, api_key="none", model=MODEL, use_responses_api=True
        )
    if dialect == "ollama":
        made = pytest.importorskip("langchain_ollama", reason=reason)
        return made.ChatOllama(base_url=server.url, model=MODEL, reasoning=True)
    made = pytest.importorskip("langchain_anthropic", reason=reason)
    return made.ChatAnthropic(base_url=server.url, api_key="none", model=MODEL)


@pytest.mark.parametrize("dialect", ["responses", "messages", "ollama"])
def test_a_tool_goes_round_in_every_dialect(server: ClientServer, dialect: str):
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"cold in {city}"

    server.backend.scripts = {
        "weather?": calls(m.Delta(reasoning="hm"), *tool_call("weather", '{"city"', ':"Oslo"}')),
        "cold in Oslo": text("Wear ", "a coat."),
    }
    bound = other_chat(server, dialect).bind_tools([weather])
    messages = [HumanMessage("weather?")]
    reply = None
    for chunk in bound.stream(messages):
        reply = chunk if reply is None else reply + chunk
    [call] = reply.tool_calls
    assert call["args"] == {"city": "Oslo"}
    result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    answer = bound.invoke([*messages, reply, result])
    assert answer.text == "Wear a coat."
