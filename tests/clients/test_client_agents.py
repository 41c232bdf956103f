"""Real coding agents, each doing one whole tool loop on a scratch repository.

The scripted model asks for the agent's own tool that reads `note.txt`, and ends once it has seen
the result. A test holds when the file's word reached the model through the agent's tool, and the
model's last words reached the terminal.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from client_programs import DEADLINE_S, find
from client_server import ClientServer, running
from scripted_backend import MODEL, Script, ScriptedBackend, calls, parts_text, text, tool_call

from swiftlm_proto import messages as m

TASK = "What is in note.txt?"
WORD = "quokka"
LAST_WORDS = "The word is out."


class AgentModel(ScriptedBackend):
    """Calls the one tool it was given a name for, then ends; titles and summaries get a word."""

    def __init__(self, tool: str, arguments: dict[str, object]) -> None:
        super().__init__()
        self.tool = tool
        self.arguments = json.dumps(arguments)

    def script_of(self, request: m.GenerateRequest) -> Script:
        messages = request.chat.messages
        if any(message.role == "tool" for message in messages):
            return text(*LAST_WORDS.split(" ", 1)[:1], " word is out.")
        if self.tool in [tool.name for tool in request.chat.tools]:
            thought, said = m.Delta(reasoning="I look."), m.Delta(content="I read it.")
            half = len(self.arguments) // 2
            pieces = self.arguments[:half], self.arguments[half:]
            return calls(thought, said, *tool_call(self.tool, *pieces))
        return text("A title")

    @property
    def tool_results(self) -> list[str]:
        """What the agent's tool gave back, as the model saw it."""
        return [
            parts_text(message)
            for request in self.requests
            for message in request.chat.messages
            if message.role == "tool"
        ]


@dataclass(frozen=True, slots=True)
class Scratch:
    """A home and a repository that nothing else uses."""

    home: Path
    repository: Path

    @property
    def note(self) -> Path:
        return self.repository / "note.txt"

    def run(self, *command: str, **environ: str) -> str:
        """What the agent printed; fails when it does not end well in time."""
        program = find(command[0])
        node = find("node").parent
        environ |= {
            "HOME": str(self.home),
            "PATH": f"{node}:{program.parent}:{os.environ['PATH']}",
            "TERM": "dumb",
            "NO_COLOR": "1",
        }
        done = subprocess.run(
            [str(program), *command[1:]],
            cwd=self.repository,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    made = Scratch(tmp_path / "home", tmp_path / "repository")
    for folder in (made.home, made.repository):
        folder.mkdir()
    made.note.write_text(f"the word is {WORD}\n")
    git = ("git", "-C", str(made.repository), "-c", "user.name=t", "-c", "user.email=t@t")
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "note"], check=True)
    return made


def loop(model: AgentModel, act: Callable[[ClientServer], str], route: str) -> None:
    with running(backend=model) as server:
        printed = act(server)
    assert any(WORD in result for result in model.tool_results), "the tool's result never came"
    assert LAST_WORDS in printed
    assert {asked for asked, _ in model.routes} == {route}


@pytest.mark.client("Claude Code")
def test_claude_code_reads_a_file_over_messages(scratch: Scratch):
    model = AgentModel("Read", {"file_path": str(scratch.note)})

    def act(server: ClientServer) -> str:
        return scratch.run(
            "claude",
            "-p",
            TASK,
            ANTHROPIC_BASE_URL=server.url,
            ANTHROPIC_AUTH_TOKEN="none",
            ANTHROPIC_MODEL=MODEL,
            ANTHROPIC_SMALL_FAST_MODEL=MODEL,
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            DISABLE_AUTOUPDATER="1",
        )

    loop(model, act, "messages")
    first = model.requests[0].chat.messages[0]
    assert "x-anthropic-billing-header" not in parts_text(first)


@pytest.mark.client("Codex CLI")
@pytest.mark.parametrize(
    ("model_name", "tool", "arguments"),
    [
        (MODEL, "exec_command", {"cmd": "cat note.txt"}),
        # A model whose name Codex knows gets its tools by an item of the input, in namespaces, and
        # writes the code that calls them as the text of a custom tool.
        (
            "gpt-5.6-sol",
            "functions__exec",
            {"input": "text(await tools.exec_command({cmd: 'cat note.txt'}))"},
        ),
    ],
)
def test_codex_runs_a_command_over_responses(scratch: Scratch, model_name, tool, arguments):
    model = AgentModel(tool, arguments)
    model.aliases[model_name] = MODEL

    def act(server: ClientServer) -> str:
        folder = scratch.home / ".codex"
        folder.mkdir()
        (folder / "config.toml").write_text(
            f'model = "{model_name}"\nmodel_provider = "local"\n'
            f'[model_providers.local]\nname = "local"\nbase_url = "{server.v1}"\n'
            'wire_api = "responses"\n'
        )
        no_sandbox = "--dangerously-bypass-approvals-and-sandbox"
        return scratch.run("codex", "exec", "--skip-git-repo-check", no_sandbox, TASK)

    loop(model, act, "responses")
    *_, assistant, _ = model.requests[-1].chat.messages
    assert assistant.reasoning == "I look.", "its history keeps our reasoning in the opaque field"


@pytest.mark.client("OpenCode")
def test_opencode_reads_a_file_over_chat(scratch: Scratch):
    model = AgentModel("read", {"filePath": str(scratch.note)})

    def act(server: ClientServer) -> str:
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "local",
            "options": {"baseURL": server.v1, "apiKey": "none"},
            "models": {MODEL: {"name": MODEL, "limit": {"context": 4096, "output": 1024}}},
        }
        config = {"autoupdate": False, "provider": {"local": provider}}
        (scratch.repository / "opencode.json").write_text(json.dumps(config))
        return scratch.run("opencode", "run", "-m", f"local/{MODEL}", TASK)

    loop(model, act, "chat")


@pytest.mark.client("pi")
def test_pi_reads_a_file_over_chat(scratch: Scratch):
    model = AgentModel("read", {"path": str(scratch.note)})

    def act(server: ClientServer) -> str:
        folder = scratch.home / ".pi" / "agent"
        folder.mkdir(parents=True)
        entry = {"id": MODEL, "name": MODEL, "contextWindow": 4096, "maxTokens": 1024}
        entry |= {"reasoning": False, "input": ["text"]}
        entry["cost"] = dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0)
        provider = {"baseUrl": server.v1, "api": "openai-completions", "apiKey": "none"}
        config = {"providers": {"local": {**provider, "models": [entry]}}}
        (folder / "models.json").write_text(json.dumps(config))
        return scratch.run("pi", "-p", "--provider", "local", "--model", MODEL, TASK)

    loop(model, act, "chat")


@pytest.mark.client("Continue CLI")
def test_continue_reads_a_file_over_chat(scratch: Scratch):
    model = AgentModel("Read", {"filepath": str(scratch.note)})

    def act(server: ClientServer) -> str:
        config = scratch.home / "config.yaml"
        config.write_text(
            "name: local\nversion: 1.0.0\nschema: v1\nmodels:\n"
            f"  - name: local\n    provider: openai\n    model: {MODEL}\n"
            f"    apiBase: {server.v1}\n    apiKey: none\n    roles: [chat]\n"
            "    capabilities: [tool_use]\n"
        )
        return scratch.run(
            "cn", "-p", TASK, "--config", str(config), CONTINUE_TELEMETRY_ENABLED="0"
        )

    loop(model, act, "chat")


@pytest.mark.client("aider")
def test_aider_edits_a_file_from_plain_text(scratch: Scratch):
    edit = "note.txt\n```\n<<<<<<< SEARCH\nthe word is quokka\n=======\nthe word is wombat\n"
    backend = ScriptedBackend(default=text(edit, ">>>>>>> REPLACE\n```\n"))
    with running(backend=backend) as server:
        scratch.run(
            "aider",
            "--model",
            f"openai/{MODEL}",
            "--message",
            "Change the word.",
            "--yes-always",
            "--no-check-update",
            "--no-show-model-warnings",
            "--no-analytics",
            "--no-gitignore",
            "--edit-format",
            "diff",
            "note.txt",
            OPENAI_API_BASE=server.v1,
            OPENAI_API_KEY="none",
            LITELLM_LOCAL_MODEL_COST_MAP="True",
        )
    assert scratch.note.read_text() == "the word is wombat\n"
    assert backend.requests
