"""Agent and routing libraries, each doing what it is for: a loop with a tool, or a parsed model."""

from __future__ import annotations

import pytest
from client_server import ClientServer
from pydantic import BaseModel
from scripted_backend import EMBEDDER, EMBEDDING_WIDTH, MODEL, Script, calls, text, tool_call

from swiftlm_proto import messages as m
from swiftlmd.faults import Kind


class City(BaseModel):
    name: str
    people: int


def need(name: str):
    return pytest.importorskip(name, reason=f"{name} is not installed; see requirements.txt")


@pytest.mark.client("instructor")
def test_instructor_forces_its_tool_and_parses_the_call(server: ClientServer):
    instructor, openai = need("instructor"), need("openai")
    server.backend.default = calls(*tool_call("City", '{"name": "Oslo", "people": 7}'))
    client = instructor.from_openai(openai.OpenAI(base_url=server.v1, api_key="none"))
    city = client.chat.completions.create(
        model=MODEL, response_model=City, messages=[{"role": "user", "content": "x"}]
    )
    assert city.model_dump() == {"name": "Oslo", "people": 7}
    assert server.backend.requests[-1].chat.tool_choice == m.ToolChoice.NAMED


@pytest.mark.client("instructor")
def test_instructor_parses_json_mode(server: ClientServer):
    instructor, openai = need("instructor"), need("openai")
    server.backend.default = text('{"name": "Oslo", "people": 7}')
    client = instructor.from_openai(
        openai.OpenAI(base_url=server.v1, api_key="none"), mode=instructor.Mode.JSON
    )
    city = client.chat.completions.create(
        model=MODEL, response_model=City, messages=[{"role": "user", "content": "x"}]
    )
    assert city.model_dump() == {"name": "Oslo", "people": 7}


@pytest.mark.client("LiteLLM")
def test_litellm_streams_calls_tools_embeds_and_raises(server: ClientServer):
    litellm = need("litellm")
    where = {"api_base": server.v1, "api_key": "none", "num_retries": 0}
    chat = {"model": f"openai/{MODEL}", "messages": [{"role": "user", "content": "x"}], **where}
    chunks = list(litellm.completion(**chat, stream=True))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == litellm.completion(**chat).choices[0].message.content == "Hello, world!"
    server.backend.default = calls(m.Delta(reasoning="hm"), *tool_call("f", '{"a": 1}'))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    message = litellm.completion(**chat, tools=[tool]).choices[0].message
    assert message.tool_calls[0].function.arguments == '{"a": 1}'
    assert message.reasoning_content == "hm"
    vectors = litellm.embedding(model=f"openai/{EMBEDDER}", input=["a"], **where)
    assert len(vectors.data[0]["embedding"]) == EMBEDDING_WIDTH
    # It knows this error by the engine's words.
    words = "this model's maximum context length is 4096 tokens; your prompt has 5000 tokens"
    fault = m.Fault(kind=Kind.CONTEXT_TOO_LONG, message=words)
    server.backend.default = Script(fault=fault)
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**chat)


@pytest.mark.client("LiteLLM")
def test_litellm_speaks_anthropic_to_us(server: ClientServer):
    litellm = need("litellm")
    reply = litellm.completion(
        model=f"anthropic/{MODEL}",
        messages=[{"role": "user", "content": "x"}],
        api_base=server.url,
        api_key="none",
    )
    assert reply.choices[0].message.content == "Hello, world!"


@pytest.mark.client("OpenAI Agents")
@pytest.mark.parametrize("dialect", ["responses", "chat"])
def test_openai_agents_runs_a_whole_loop(server: ClientServer, dialect: str):
    agents, openai = need("agents"), need("openai")
    server.backend.scripts = {
        "weather?": calls(*tool_call("weather", '{"city": "Oslo"}')),
        "cold in Oslo": text("Wear a coat."),
    }

    @agents.function_tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"cold in {city}"

    client = openai.AsyncOpenAI(base_url=server.v1, api_key="none")
    kind = {
        "responses": agents.OpenAIResponsesModel,
        "chat": agents.OpenAIChatCompletionsModel,
    }[dialect]
    agents.set_tracing_disabled(True)
    agent = agents.Agent(name="a", model=kind(model=MODEL, openai_client=client), tools=[weather])
    assert agents.Runner.run_sync(agent, "weather?").final_output == "Wear a coat."
    assert {route for route, _ in server.backend.routes} == {dialect}


@pytest.mark.client("OpenAI Agents")
async def test_openai_agents_streams_a_whole_loop(server: ClientServer):
    agents, openai = need("agents"), need("openai")
    server.backend.scripts = {
        "weather?": calls(m.Delta(reasoning="hm"), *tool_call("weather", '{"city": "Oslo"}')),
        "cold in Oslo": text("Wear ", "a coat."),
    }

    @agents.function_tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"cold in {city}"

    client = openai.AsyncOpenAI(base_url=server.v1, api_key="none")
    model = agents.OpenAIResponsesModel(model=MODEL, openai_client=client)
    agents.set_tracing_disabled(True)
    run = agents.Runner.run_streamed(
        agents.Agent(name="a", model=model, tools=[weather]), "weather?"
    )
    kinds = {event.type async for event in run.stream_events()}
    assert "raw_response_event" in kinds
    assert run.final_output == "Wear a coat."


@pytest.mark.client("smolagents")
def test_smolagents_calls_its_tool_and_ends(server: ClientServer):
    smolagents = need("smolagents")
    calls_: list[str] = []

    @smolagents.tool
    def weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: Which city.
        """
        calls_.append(city)
        server.backend.default = calls(*tool_call("final_answer", '{"answer": "Wear a coat."}'))
        return f"cold in {city}"

    server.backend.default = calls(*tool_call("weather", '{"city": "Oslo"}'))
    model = smolagents.OpenAIServerModel(model_id=MODEL, api_base=server.v1, api_key="none")
    agent = smolagents.ToolCallingAgent(
        tools=[weather], model=model, max_steps=4, verbosity_level=0
    )
    assert agent.run("weather?") == "Wear a coat."
    assert calls_ == ["Oslo"]
    first = server.backend.requests[0]
    assert first.chat.tool_choice == m.ToolChoice.REQUIRED
    assert first.stop
