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
NO_KEY = "YOUR_KEY"  # where one is required and none was given
# Beside its first request an agent needs room for files, tool results and answers, in tokens.
_LEAST_ROOM, _GOOD_ROOM = 4096, 12_288


@dataclass(frozen=True, slots=True)
class Service:
    """What a client has to know of us."""

    address: str  # http://127.0.0.1:5413
    model: str
    context: int  # tokens; 0 = unknown
    key: str = ANY_KEY
    max_context: int = 0  # of the model, however it is loaded; 0 = unknown
    takes_tools: bool = True

    @property
    def openai(self) -> str:
        return f"{self.address}/v1"

    @property
    def output(self) -> int:
        """Tokens of one answer that leave the prompt its room."""
        return max(self.context // 4, 1024)


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
    # The prompt and the tools it sends before the user's first word; 0 = not measured. Of the
    # versions in tests/clients/package.json, by SmolLM2's tokenizer (3.7 characters a token).
    first_tokens: int = 0

    def path(self, home: Path) -> Path:
        return home / self.file

    def next_step(self, service: Service) -> str:
        key = f"any text, such as {ANY_KEY}" if service.key == ANY_KEY else service.key
        return self.then.format(model=service.model, key=key)

    @property
    def wanted_context(self) -> int:
        """Tokens for its first request and the work after it."""
        return -(-(self.first_tokens + _GOOD_ROOM) // 4096) * 4096

    def too_small(self, service: Service) -> str:
        """Why this client's first request does not fit, and what mends it; "" = it fits."""
        if not self.first_tokens or not service.context:
            return ""
        if service.context >= self.first_tokens + _LEAST_ROOM:
            return ""
        wanted = self.wanted_context
        verdict = "are too few" if service.context <= self.first_tokens else "leave too little room"
        mend = f"`swiftlmctl load {service.model} --ctx {wanted}`, then connect again"
        if 0 < service.max_context < self.first_tokens + _LEAST_ROOM:
            mend = f"{service.model} takes no more than {service.max_context:,}: use another model"
        elif 0 < service.max_context < wanted:
            mend = mend.replace(str(wanted), str(service.max_context))
        return (
            f"{self.title} sends about {self.first_tokens:,} tokens before your first word; "
            f"{service.context:,} tokens of context {verdict}; {mend}"
        )


def _nothing(text: str, service: Service) -> str:
    raise Unsafe("it is configured by hand")


def _claude_settings(service: Service) -> dict[str, object]:
    names = (
        "ANTHROPIC_MODEL",
        "ANTHROPIC_DEFAULT_OPUS_MODEL",
        "ANTHROPIC_DEFAULT_SONNET_MODEL",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    )
    # It takes every model for one of 200,000 tokens and would compact too late.
    sizes = ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", "CLAUDE_CODE_AUTO_COMPACT_WINDOW")
    return {
        "env": {
            "ANTHROPIC_BASE_URL": service.address,
            "ANTHROPIC_AUTH_TOKEN": service.key,
            **dict.fromkeys(names, service.model),
            **(dict.fromkeys(sizes, str(service.context)) if service.context else {}),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
    }


def _claude(text: str, service: Service) -> str:
    return merged_json(text, _claude_settings(service))


def _codex_tables(service: Service) -> str:
    lines = [
        "[model_providers.swiftlm]",
        'name = "swiftlm"',
        f"base_url = {json.dumps(service.openai)}",
        'wire_api = "responses"',
    ]
    if service.key != ANY_KEY:  # without one it sends none
        lines.append(f"experimental_bearer_token = {json.dumps(service.key)}")
    return "\n".join(lines)


def _codex_keys(service: Service) -> dict[str, str | int]:
    keys: dict[str, str | int] = {"model": service.model, "model_provider": "swiftlm"}
    if service.context:
        keys["model_context_window"] = service.context
        keys["model_auto_compact_token_limit"] = service.context * 8 // 10
    return keys


def _codex(text: str, service: Service) -> str:
    return toml_with(text, _codex_keys(service), _codex_tables(service))


def _codex_by_hand(service: Service) -> str:
    keys = (f"{key} = {json.dumps(value)}" for key, value in _codex_keys(service).items())
    return "\n".join(["# at the top:", *keys, "", "# at the end:", _codex_tables(service)])


def _opencode_settings(service: Service) -> dict[str, object]:
    limit = {"context": service.context, "output": service.output}
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


def _pi_settings(service: Service) -> dict[str, object]:
    model: dict[str, object] = {"id": service.model, "name": service.model}
    if service.context:
        model |= {"contextWindow": service.context, "maxTokens": service.output}
    provider = {
        "baseUrl": service.openai,
        "api": "openai-completions",
        "apiKey": service.key,
        "models": [model],
    }
    return {"providers": {"swiftlm": provider}}


def _pi(text: str, service: Service) -> str:
    return merged_json(text, _pi_settings(service))


def _continue_text(service: Service) -> str:
    context = [
        "    defaultCompletionOptions:",
        f"      contextLength: {service.context}",
        f"      maxTokens: {service.output}",
    ]
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
            *(context if service.context else ()),
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
        first_tokens=20_000,
    ),
    Client(
        "codex",
        "Codex CLI",
        ".codex/config.toml",
        _codex,
        _codex_by_hand,
        "start `codex`",
        is_agent=True,
        first_tokens=10_000,
    ),
    Client(
        "opencode",
        "OpenCode",
        ".config/opencode/opencode.json",
        _opencode,
        _json(_opencode_settings),
        "start `opencode`",
        is_agent=True,
        first_tokens=8_000,
    ),
    Client(
        "pi",
        "pi",
        ".pi/agent/models.json",
        _pi,
        _json(_pi_settings),
        "start `pi --provider swiftlm --model {model}`",
        is_agent=True,
        first_tokens=1_400,
    ),
    Client(
        "continue",
        "Continue",
        ".continue/config.yaml",
        _continue,
        _continue_text,
        "reload the editor",
        first_tokens=1_300,
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
        "Zed asks once for a key of `swiftlm`: {key}",
    ),
)


def named(name: str) -> Client | None:
    return next((client for client in CLIENTS if client.name == name), None)
