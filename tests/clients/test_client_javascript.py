"""The libraries of JavaScript: the AI SDK through each of its providers, and npm's `ollama`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from client_programs import DEADLINE_S, find
from client_server import ClientServer
from scripted_backend import EMBEDDER, EMBEDDING_WIDTH, MODEL, calls, text, tool_call

from swiftlm_proto import messages as m

SCRIPTS = Path(__file__).parent / "js"
PROVIDERS = ["compatible", "chat", "responses", "anthropic"]
GENERATIONS = [
    pytest.param(generation, marks=pytest.mark.client(f"AI SDK {generation}"))
    for generation in ("6", "7")
]


def run_script(script: str, *arguments: str) -> Any:
    """What the script printed; node takes it from stdin, so packages are those of its folder."""
    node = find("node", beside="pi")
    done = subprocess.run(
        [str(node), "--input-type=module", "-", *arguments],
        input=(SCRIPTS / script).read_text(),
        cwd=node.parent,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def ai_sdk(server: ClientServer, generation: str, provider: str, deed: str) -> Any:
    return run_script("ai_sdk.mjs", generation, provider, deed, server.url, MODEL, EMBEDDER)


@pytest.fixture
def weather(server: ClientServer) -> ClientServer:
    """The model thinks, asks for the weather, and answers."""
    server.backend.scripts = {
        "weather?": calls(m.Delta(reasoning="hm"), *tool_call("weather", '{"city"', ':"Oslo"}')),
        "cold in Oslo": text("Wear ", "a coat."),
        "thanks": text("Bye."),
    }
    return server


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_ai_sdk_runs_a_loop_and_the_next_turn(weather: ClientServer, generation, provider):
    done = ai_sdk(weather, generation, provider, "loop")
    assert done == {"text": "Wear a coat.", "steps": 2, "next": "Bye."}
    roles = [message.role for message in weather.backend.requests[-1].chat.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_ai_sdk_streams_thoughts_and_a_loop(weather: ClientServer, generation, provider):
    done = ai_sdk(weather, generation, provider, "stream")
    assert done["text"] == "Wear a coat."
    assert done["errors"] == []
    assert done["usage"]["inputTokens"]
    # Its provider of OpenAI's chat has no field for thoughts.
    assert done["thoughts"] == ("" if provider == "chat" else "hm")


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_ai_sdk_parses_an_object(server: ClientServer, generation, provider):
    said = '{"to": "a@b.cc", "people": 7}'
    # Anthropic's provider forces a tool for it.
    forced = calls(*tool_call("json", said))
    server.backend.default = forced if provider == "anthropic" else text(said)
    assert ai_sdk(server, generation, provider, "object") == json.loads(said)
    request = server.backend.requests[-1]
    if provider == "anthropic":
        assert request.chat.tool_choice == m.ToolChoice.REQUIRED
    elif provider != "compatible":  # it asks for any JSON object unless told that schemas work
        assert "people" in request.constraint.json_schema


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("provider", ["compatible", "chat"])
def test_the_ai_sdk_gets_vectors(server: ClientServer, generation, provider):
    assert ai_sdk(server, generation, provider, "vectors") == [EMBEDDING_WIDTH] * 2


@pytest.mark.client("ollama (npm)")
def test_npm_ollama_makes_all_its_calls(weather: ClientServer):
    weather.backend.scripts["why?"] = text("Because.")
    done = run_script("ollama.mjs", weather.url, MODEL, EMBEDDER)
    assert done["thoughts"] == "hm"
    assert [call["function"]["arguments"] for call in done["calls"]] == [{"city": "Oslo"}]
    assert (done["answer"], done["generated"]) == ("Wear a coat.", "Because.")
    assert done["models"] == [MODEL, EMBEDDER]
    assert (done["running"], done["vectors"]) == (2, 2)
    assert "completion" in done["shown"]
    assert done["failure"] == ["ResponseError", 404]
