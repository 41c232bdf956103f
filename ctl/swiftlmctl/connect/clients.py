"""The programs that `swiftlmctl connect` knows: which file, what in it, what to do then.

Checked against the clients' own behaviour: Claude Code speaks the Anthropic API and wants the base
URL without /v1; Codex speaks only the Responses API; the rest speak chat completions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from swiftlmctl.connect.edits import Unsafe, merged_json, toml_with, yaml_with

# Clients insist on some key; the daemon asks for none unless it was configured to.
ANY_KEY = "swiftlm"


@dataclass(frozen=True, slots=True)
class Service:
    """What a client has to know of us."""

    address: str  # http://127.0.0.1:5413
    model: str
    context: int  # tokens; 0 = unknown
    key: str = ANY_KEY
    takes_tools: bool = True

    @property
    def openai(self) -> str:
        return f"{self.address}/v1"


@dataclass(frozen=True, slots=True)
class Client:
    name: str
    title: str
    # The configuration file below HOME; "" = nothing to write, only to say.
    file: str
    edit: Callable[[str, Service], str]
    # To be printed: when the file cannot be edited, or when there is none.
    by_hand: Callable[[Service], str]
    then: str
    is_agent: bool = False  # does nothing without tools

    def path(self, home: Path) -> Path:
        return home / self.file


def _nothing(text: str, service: Service) -> str:
    raise Unsafe("it is configured by hand")


def _claude_settings(service: Service) -> dict[str, object]:
    names = (
        "ANTHROPIC_MODEL",
        "ANTHROPIC_DEFAULT_OPUS_MODEL",
        "ANTHROPIC_DEFAULT_SONNET_MODEL",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    )
    return {
        "env": {
            "ANTHROPIC_BASE_URL": service.address,
            "ANTHROPIC_AUTH_TOKEN": service.key,
            **dict.fromkeys(names, service.model),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
    }


def _claude(text: str, service: Service) -> str:
    return merged_json(text, _claude_settings(service))


def _codex_tables(service: Service) -> str:
    return (
        "[model_providers.swiftlm]\n"
        'name = "swiftlm"\n'
        f"base_url = {json.dumps(service.openai)}\n"
        'wire_api = "responses"'
    )


def _codex_keys(service: Service) -> dict[str, str]:
    return {"model": service.model, "model_provider": "swiftlm"}


def _codex(text: str, service: Service) -> str:
    return toml_with(text, _codex_keys(service), _codex_tables(service))


def _codex_by_hand(service: Service) -> str:
    keys = (f"{key} = {json.dumps(value)}" for key, value in _codex_keys(service).items())
    return "\n".join(["# at the top:", *keys, "", "# at the end:", _codex_tables(service)])


def _opencode_settings(service: Service) -> dict[str, object]:
    limit = {"context": service.context, "output": max(service.context // 4, 1024)}
    model = {"name": service.model, **({"limit": limit} if service.context else {})}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "swiftlm",
        "options": {"baseURL": service.openai, "apiKey": service.key},
        "models": {service.model: model},
    }
    return {"provider": {"swiftlm": provider}, "model": f"swiftlm/{service.model}"}


def _opencode(text: str, service: Service) -> str:
    return merged_json(text, _opencode_settings(service))


def _continue_text(service: Service) -> str:
    return "\n".join(
        [
            "name: swiftlm",
            "version: 0.0.1",
            "schema: v1",
            "models:",
            f"  - name: {json.dumps(service.model)}",
            "    provider: openai",
            f"    model: {json.dumps(service.model)}",
            f"    apiBase: {json.dumps(service.openai)}",
            f"    apiKey: {json.dumps(service.key)}",
            "    roles: [chat, edit, apply]",
            "",
        ]
    )


def _continue(text: str, service: Service) -> str:
    if text.strip() and text != _continue_text(service):
        raise Unsafe("it holds models already, and YAML cannot be edited without losing comments")
    return _continue_text(service)


def _aider_keys(service: Service) -> dict[str, str]:
    return {
        "openai-api-base": service.openai,
        "openai-api-key": service.key,
        "model": f"openai/{service.model}",
    }


def _aider(text: str, service: Service) -> str:
    return yaml_with(text, _aider_keys(service))


def _zed_settings(service: Service) -> dict[str, object]:
    model = {
        "name": service.model,
        "display_name": service.model,
        "max_tokens": service.context or 8192,
    }
    provider = {"api_url": service.openai, "available_models": [model]}
    return {
        "language_models": {"openai_compatible": {"swiftlm": provider}},
        "agent": {"default_model": {"provider": "swiftlm", "model": service.model}},
    }


def _zed(text: str, service: Service) -> str:
    return merged_json(text, _zed_settings(service))


def _open_webui(service: Service) -> str:
    inside = service.openai.replace("127.0.0.1", "host.docker.internal")
    return (
        f"OPENAI_API_BASE_URL={service.openai}\n"
        f"OPENAI_API_KEY={service.key}\n"
        "\n"
        'or in Docker, with swiftlm\'s http.allowed_hosts set to ["host.docker.internal"]:\n'
        f"docker run -d -p 3000:8080 -e OPENAI_API_BASE_URL={inside} "
        f"-e OPENAI_API_KEY={service.key} ghcr.io/open-webui/open-webui:main"
    )


def _ollama(service: Service) -> str:
    """Programs that speak Ollama's API ask for its address only."""
    inside = service.address.replace("127.0.0.1", "host.docker.internal")
    return (
        f"OLLAMA_HOST={service.address}\n"
        f"OLLAMA_BASE_URL={service.address}\n"
        "\n"
        "Home Assistant, Raycast, Obsidian, VS Code and others have a field for Ollama's address:\n"
        f"{service.address}\n"
        f"and the model {service.model}. From a container: {inside}, with swiftlm's\n"
        'http.allowed_hosts set to ["host.docker.internal"].'
    )


def _json(settings: Callable[[Service], dict[str, object]]) -> Callable[[Service], str]:
    return lambda service: json.dumps(settings(service), indent=2)


CLIENTS: tuple[Client, ...] = (
    Client(
        "claude-code",
        "Claude Code",
        ".claude/settings.json",
        _claude,
        _json(_claude_settings),
        "start `claude`",
        is_agent=True,
    ),
    Client(
        "codex",
        "Codex CLI",
        ".codex/config.toml",
        _codex,
        _codex_by_hand,
        "start `codex`",
        is_agent=True,
    ),
    Client(
        "opencode",
        "OpenCode",
        ".config/opencode/opencode.json",
        _opencode,
        _json(_opencode_settings),
        "start `opencode`",
        is_agent=True,
    ),
    Client(
        "continue",
        "Continue",
        ".continue/config.yaml",
        _continue,
        _continue_text,
        "reload the editor",
    ),
    Client(
        "aider",
        "aider",
        ".aider.conf.yml",
        _aider,
        lambda service: "\n".join(f"{k}: {v}" for k, v in _aider_keys(service).items()),
        "start `aider`",
    ),
    Client(
        "ollama", "any client of Ollama", "", _nothing, _ollama, "start it with this environment"
    ),
    Client("openwebui", "Open WebUI", "", _nothing, _open_webui, "start it with this environment"),
    Client(
        "zed",
        "Zed",
        ".config/zed/settings.json",
        _zed,
        _json(_zed_settings),
        f"Zed asks once for a key of `swiftlm`: any will do, e.g. {ANY_KEY}",
    ),
)


def named(name: str) -> Client | None:
    return next((client for client in CLIENTS if client.name == name), None)
