"""`/api/tags`, `ps`, `show`, `version` and `pull`: the models, as Ollama describes them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, ClassVar

from aiohttp import web

from swiftlm_proto import messages as m
from swiftlm_proto.version import version
from swiftlmd.faults import ServiceError, from_fault
from swiftlmd.http.channel import Channel
from swiftlmd.http.context import CONTEXT, RECORD
from swiftlmd.http.errors import invalid, unsupported
from swiftlmd.http.models import capabilities, listed
from swiftlmd.http.ollama.answers import CONTENT_TYPE, error_body
from swiftlmd.http.ollama.generate import named
from swiftlmd.http.openai_json import dumps
from swiftlmd.http.schema import Body

log = logging.getLogger(__name__)

# Clients refuse what is older than they know: this is the Ollama whose API this one follows.
API_VERSION = "0.13.0"
_FAR = "9999-12-31T23:59:59Z"  # of a model that stays until it is unloaded
_HUBS = ("hf.co/", "huggingface.co/", "https://hf.co/", "https://huggingface.co/")

Json = dict[str, Any]  # Any: JSON


class ShowBody(Body):
    model: str | None = None
    name: str | None = None  # its older spelling
    verbose: bool | None = None
    ignored: ClassVar[frozenset[str]] = frozenset({"verbose"})  # everything is always told
    refused: ClassVar[Mapping[str, str]] = {
        "system": "send a system message",
        "template": "the model's own is used",
    }


class PullBody(Body):
    model: str | None = None
    name: str | None = None
    stream: bool | None = None
    refused: ClassVar[Mapping[str, str]] = {"insecure": "downloads are always checked"}


async def tags(request: web.Request) -> web.Response:
    parts = request.app[CONTEXT]
    models = await listed(parts)
    entries = [{**_entry(x), "modified_at": _moment(parts.started_at)} for x in models]
    return web.json_response({"models": entries}, dumps=dumps)


async def running(request: web.Request) -> web.Response:
    models = [x for x in await request.app[CONTEXT].backend.list_models() if x.loaded is not None]
    entries = [
        {
            **_entry(model),
            "size": model.footprint_bytes or model.size_bytes,
            "size_vram": model.footprint_bytes or model.size_bytes,
            "expires_at": _moment(model.expires_at) if model.expires_at else _FAR,
            "context_length": model.loaded.context if model.loaded else model.context,
        }
        for model in models
    ]
    return web.json_response({"models": entries}, dumps=dumps)


async def show(request: web.Request) -> web.Response:
    parts = request.app[CONTEXT]
    body = await parts.bodies.read(request, ShowBody)
    await named(request, body.model or body.name, False)
    name = request[RECORD].model
    models = {model.model: model for model in await parts.backend.list_models()}
    model = models.get(name) or m.ModelStatus(model=name)
    family = _family(model)
    context = model.loaded.context if model.loaded is not None else model.context
    answer = {
        "modelfile": f"FROM {name}\n",
        "parameters": f"num_ctx {context}" if context else "",
        "template": "",
        "license": model.licence,
        "modified_at": _moment(parts.started_at),
        "details": _details(model),
        "model_info": {
            "general.architecture": family,
            "general.basename": name,
            "general.size_bytes": model.size_bytes,
            f"{family}.context_length": context,
        },
        "capabilities": capabilities(model),
    }
    return web.json_response(answer, dumps=dumps)


async def api_version(request: web.Request) -> web.Response:
    return web.json_response({"version": API_VERSION, "swiftlm": version()}, dumps=dumps)


class Pull:
    """`/api/pull`, by the Admin service that fetches models."""

    def __init__(self, admin: m.AdminBase) -> None:
        self._admin = admin

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.app[CONTEXT].bodies.read(request, PullBody)
        model = _hub_name(body.model or body.name)
        steps = self._steps(model)
        if body.stream is False:
            async with aclosing(steps):
                told = [step async for step in steps]
            return web.json_response(told[-1] if told else {}, dumps=dumps)
        channel = Channel(request, None, {"Content-Type": CONTENT_TYPE})
        async with channel.open(), aclosing(steps):
            try:
                async for step in steps:
                    await channel.write(f"{dumps(step)}\n".encode())
                await channel.end()
            except ServiceError as error:
                await channel.fail(error, f"{dumps(error_body(error))}\n".encode())
        return channel.response

    async def _steps(self, model: str) -> AsyncGenerator[Json, None]:
        async with aclosing(self._admin.pull(m.PullRequest(model=model))) as events:  # type: ignore[type-var]  # grpclib types a generator as an iterator
            async for event in events:
                if event.fault is not None:
                    raise from_fault(event.fault)
                yield from_event(event, model)


def from_event(event: m.OperationEvent, model: str) -> Json:
    if event.done:
        return {"status": "success"}
    status = f"pulling {model}" if event.total_bytes else event.detail or event.stage or "pulling"
    step: Json = {"status": status}
    if event.total_bytes:
        digest = _digest(model)
        step |= {"digest": digest, "total": event.total_bytes, "completed": event.done_bytes}
    return step


def _hub_name(model: str | None) -> str:
    if not model:
        raise invalid("model: Field required", "model", code="missing_required_parameter")
    name = next((model[len(hub) :] for hub in _HUBS if model.startswith(hub)), model)
    name, _, tag = name.partition(":")
    if tag not in ("", "latest"):
        raise unsupported(
            f"model: the tag {tag[:64]!r} means nothing on the hub; name the repository, such as "
            "mlx-community/Qwen3-4B-4bit",
            "model",
        )
    return name


def _entry(model: m.ModelStatus) -> Json:
    return {
        "name": model.model,
        "model": model.model,
        "size": model.size_bytes,
        "digest": _digest(f"{model.model} {model.size_bytes}"),
        "details": _details(model),
    }


def _details(model: m.ModelStatus) -> Json:
    family = _family(model)
    return {
        "parent_model": "",
        "format": "mlx",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": model.quantization,
    }


def _family(model: m.ModelStatus) -> str:
    return (model.loaded.model_type if model.loaded else "") or model.model_type or "unknown"


def _digest(text: str) -> str:
    """Clients show and compare it; no blob lies behind it."""
    return hashlib.sha256(text.encode()).hexdigest()


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
