"""The server that client libraries are pointed at.

Every test asks for its library with `pytest.importorskip`; `make clients` installs them all (see
requirements.txt), a plain test run has the light ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
from client_server import KEY, ClientServer, running

from swiftlmd.http.options import HttpOptions


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
