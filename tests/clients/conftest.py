"""The server that clients are pointed at, and the table of what became of them.

A client that is not installed is skipped with its name: a plain test run has the light ones,
`sh tests/clients/run.sh` installs them all and writes docs/clients.md through `CLIENTS_TABLE`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
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
    "instructor": "instructor",
    "LiteLLM": "litellm",
    "OpenAI Agents": "openai-agents",
    "smolagents": "smolagents",
    "ollama": "ollama",
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
    rows = ["| client | version | tests | result |", "|---|---|---|---|"]
    for client, package in PACKAGES.items():
        outcomes = _outcomes.get(client, Counter())
        result = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
        row = (client, version_of(package), str(outcomes.total()), result or "not run")
        rows.append(f"| {' | '.join(row)} |")
    page = Path(target)
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    table = "\n".join(rows)
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


def version_of(package: str) -> str:
    pinned = json.loads((Path(__file__).parent / "package.json").read_text())["dependencies"]
    if package in pinned:
        return pinned[package]
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
