"""The server that clients are pointed at, and the table of what became of them.

A client that is not installed is skipped with its name: a plain test run has the light ones,
`sh tests/clients/run.sh` installs them all, in environments that each run the tests, and writes
docs/clients.md through `CLIENTS_TABLE`. A run changes only the rows of the clients that it ran.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_server import KEY, ClientServer, running

from swiftlmd.config.http import HttpOptions

# How a client's version is found: a Python distribution, or a package of package.json.
PACKAGES = {
    "openai": "openai",
    "anthropic": "anthropic",
    "LangChain": "langchain-openai",
    "LlamaIndex": "llama-index-core",
    "pydantic-ai": "pydantic-ai-slim",
    "instructor": "instructor",
    "LiteLLM": "litellm",
    "OpenAI Agents": "openai-agents",
    "smolagents": "smolagents",
    "lm-eval": "lm-eval",
    "ollama": "ollama",
    "ollama (npm)": "npm:ollama",
    "AI SDK 6": "ai",
    "AI SDK 7": "ai7",
    "Claude Code": "@anthropic-ai/claude-code",
    "Codex CLI": "@openai/codex",
    "OpenCode": "opencode-ai",
    "pi": "@earendil-works/pi-coding-agent",
    "Continue CLI": "@continuedev/cli",
    "aider": "aider-chat",
}
BEGIN, END = "<!-- results -->", "<!-- end of results -->"

_outcomes: dict[str, Counter[str]] = defaultdict(Counter)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "client(name): the client that the test runs")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    marker = item.get_closest_marker("client")
    if marker is not None and (report.when == "call" or report.skipped or report.failed):
        _outcomes[marker.args[0]][report.outcome] += 1
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    target = os.environ.get("CLIENTS_TABLE")
    if not target:
        return
    page = Path(target)
    before, _, rest = page.read_text().partition(BEGIN)
    table, _, after = rest.partition(END)
    rows = {line.split("|")[1].strip(): line for line in table.splitlines() if "|" in line}
    head = ["| client | version | tests | result | run on |", "|---|---|---|---|---|"]
    lines = [row_of(client, rows.get(client)) for client in PACKAGES]
    written = "\n".join([*head, *filter(None, lines)])
    page.write_text(f"{before}{BEGIN}\n{written}\n{END}{after}")


def row_of(client: str, earlier: str | None) -> str | None:
    """The client's row: of this run, where it was installed."""
    outcomes = _outcomes.get(client, Counter())
    if set(outcomes) <= {"skipped"}:
        return earlier
    result = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
    day = time.strftime("%Y-%m-%d")
    version = version_of(PACKAGES[client])
    return f"| {client} | {version} | {outcomes.total()} | {result} | {day} |"


def version_of(package: str) -> str:
    pinned = json.loads((Path(__file__).parent / "package.json").read_text())["dependencies"]
    in_npm = package.removeprefix("npm:")
    if package != "ollama" and in_npm in pinned:
        return pinned[in_npm].rpartition("@")[2]
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return os.environ.get("AIDER_VERSION", "-") if package == "aider-chat" else "-"


@pytest.fixture
def server() -> Iterator[ClientServer]:
    with running() as started:
        yield started


@pytest.fixture
def locked_server() -> Iterator[ClientServer]:
    """Needs `KEY`."""
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    with running(HttpOptions(port=0, api_key_hashes=(digest,))) as started:
        yield started


@pytest.fixture(autouse=True)
def nothing_leaves_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Telemetry and price maps off; a key of the environment must not reach a client."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LANGSMITH_TRACING": "false",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }.items():
        monkeypatch.setenv(name, value)
