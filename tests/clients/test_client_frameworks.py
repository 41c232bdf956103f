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


def weather_scripts(server: ClientServer) -> None:
    server.backend.scripts = {
        "weather?": calls(m.Delta(reasoning="hm"), *tool_call("weather", '{"city"', ':"Oslo"}')),
        "cold in Oslo": text("Wear ", "a coat."),
    }


def weather_in(city: str) -> str:
    """The weather in a city.

    Args:
        city: Its name.
    """
    return f"cold in {city}"


def pydantic_model(server: ClientServer, dialect: str):
    """The model that pydantic-ai makes for the dialect."""
    need("pydantic_ai")
    if dialect == "messages":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        provider = AnthropicProvider(base_url=server.url, api_key="none")
        return AnthropicModel(MODEL, provider=provider)
    if dialect == "ollama":
        from pydantic_ai.models.ollama import OllamaModel
        from pydantic_ai.providers.ollama import OllamaProvider

        return OllamaModel(MODEL, provider=OllamaProvider(base_url=server.v1))
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIResponsesModel if dialect == "responses" else OpenAIChatModel
    return kind(MODEL, provider=OpenAIProvider(base_url=server.v1, api_key="none"))


@pytest.mark.client("pydantic-ai")
@pytest.mark.parametrize("dialect", ["chat", "responses", "messages", "ollama"])
async def test_pydantic_ai_runs_a_loop_and_the_next_turn(server: ClientServer, dialect: str):
    pydantic_ai = need("pydantic_ai")
    weather_scripts(server)
    agent = pydantic_ai.Agent(pydantic_model(server, dialect))
    agent.tool_plain(weather_in, name="weather")
    done = await agent.run("weather?")
    assert done.output == "Wear a coat."
    async with agent.run_stream("thanks", message_history=done.all_messages()) as streamed:
        assert await streamed.get_output() == "Hello, world!"
    roles = [message.role for message in server.backend.requests[-1].chat.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


@pytest.mark.client("pydantic-ai")
@pytest.mark.parametrize("dialect", ["chat", "responses"])
async def test_pydantic_ai_parses_by_tool_and_by_schema(server: ClientServer, dialect: str):
    pydantic_ai = need("pydantic_ai")
    said = '{"name": "Oslo", "people": 7}'
    model = pydantic_model(server, dialect)
    server.backend.default = calls(*tool_call("final_result", said))
    by_tool = await pydantic_ai.Agent(model, output_type=City).run("x")
    server.backend.default = text(said)
    native = pydantic_ai.NativeOutput(City)
    by_schema = await pydantic_ai.Agent(model, output_type=native).run("x")
    assert by_tool.output == by_schema.output == City(name="Oslo", people=7)
    assert server.backend.requests[-1].constraint.json_schema


@pytest.mark.client("LlamaIndex")
@pytest.mark.parametrize("dialect", ["chat", "ollama"])
async def test_llama_index_runs_an_agent(server: ClientServer, dialect: str):
    need("llama_index.core")
    from llama_index.core.agent.workflow import FunctionAgent

    if dialect == "ollama":
        from llama_index.llms.ollama import Ollama

        llm = Ollama(model=MODEL, base_url=server.url, context_window=4096)
    else:
        from llama_index.llms.openai_like import OpenAILike

        llm = OpenAILike(
            model=MODEL,
            api_base=server.v1,
            api_key="none",
            is_chat_model=True,
            is_function_calling_model=True,
        )
    weather_scripts(server)

    def weather(city: str) -> str:
        """The weather in a city."""
        return weather_in(city)

    agent = FunctionAgent(tools=[weather], llm=llm)
    assert str(await agent.run("weather?")) == "Wear a coat."


@pytest.mark.client("LlamaIndex")
def test_llama_index_completes_and_embeds(server: ClientServer):
    need("llama_index.core")
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(model=MODEL, api_base=server.v1, api_key="none")
    assert llm.complete("hi").text == "Hello, world!"
    pieces = list(llm.stream_complete("hi"))
    assert pieces[-1].text == "Hello, world!"
    embedding = OpenAILikeEmbedding(model_name=EMBEDDER, api_base=server.v1, api_key="none")
    vectors = embedding.get_text_embedding_batch(["a", "b"])
    assert [len(vector) for vector in vectors] == [EMBEDDING_WIDTH] * 2
