"""`GET /v1/models` and `/v1/models/{id}`: what can be asked for, in what state, how large.

One entry serves OpenAI's clients, Anthropic's (`type`, `display_name`, `created_at`) and those
that look for the context length.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from swiftlm_proto import messages as m
from swiftlmd.faults import ModelNotFound
from swiftlmd.http.context import CONTEXT, AppContext
from swiftlmd.http.openai_json import dumps


async def list_models(request: web.Request) -> web.Response:
    parts = request.app[CONTEXT]
    entries = [_entry(model, parts.started_at) for model in await listed(parts)]
    body: dict[str, Any] = {
        "object": "list",
        "data": entries,
        "has_more": False,
        "first_id": entries[0]["id"] if entries else None,
        "last_id": entries[-1]["id"] if entries else None,
    }
    if "client_version" in request.query:  # Codex parses this field and needs no entries
        body["models"] = []
    return web.json_response(body, dumps=dumps)


async def listed(parts: AppContext) -> list[m.ModelStatus]:
    """Every model, and behind them those that have another name, too."""
    models = await parts.backend.list_models()
    by_name = {model.model: model for model in models}
    aliases = (await parts.backend.status()).aliases.items()
    named = [
        replace(by_name[name], model=alias)
        for alias, name in sorted(aliases)
        if name in by_name and alias not in by_name and "*" not in alias
    ]
    return [*models, *named]


async def get_model(request: web.Request) -> web.Response:
    parts = request.app[CONTEXT]
    asked = request.match_info["id"]
    models = await parts.backend.list_models()
    name = await parts.backend.named(asked)
    for model in models:
        if model.model == name:
            return web.json_response(_entry(model, parts.started_at), dumps=dumps)
    raise ModelNotFound(asked, [model.model for model in models])


def capabilities(model: m.ModelStatus) -> list[str]:
    """As Ollama lists them. Any model embeds."""
    loaded = model.loaded
    has = {
        "completion": True,
        "embedding": True,
        "vision": loaded.vision if loaded is not None else model.vision,
        "tools": bool(loaded.tool_format) if loaded is not None else model.tools,
        "thinking": loaded.reasoning if loaded is not None else model.reasoning,
    }
    return [name for name, is_so in has.items() if is_so]


def _entry(model: m.ModelStatus, created: float) -> dict[str, Any]:
    loaded = model.loaded
    context = loaded.context if loaded is not None else model.context
    vision = loaded.vision if loaded is not None else model.vision
    tools = bool(loaded.tool_format) if loaded is not None else model.tools
    return {
        "id": model.model,
        "object": "model",
        "created": int(created),
        "owned_by": "swiftlm",
        "type": "model",
        "display_name": model.model,
        "created_at": datetime.fromtimestamp(int(created), UTC).isoformat().replace("+00:00", "Z"),
        "context_length": context or None,
        "max_model_len": context or None,
        "max_input_tokens": context or None,
        "input_modalities": ["text", "image"] if vision else ["text"],
        "vision": vision,
        "output_modalities": ["text"],
        "state": (m.ModelStatusState(model.state).name or "").lower(),
        "size_bytes": model.size_bytes,
        "model_type": model.model_type or None,
        "quantization": model.quantization or None,
        "pinned": model.pinned,
        "reasoning": loaded.reasoning if loaded is not None else model.reasoning,
        "tools": tools,
    }
