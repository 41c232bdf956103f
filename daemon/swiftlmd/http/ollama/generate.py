"""`POST /api/chat` and `/api/generate`."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web

from swiftlm_proto import messages as m
from swiftlmd.faults import MAX_NAME, ModelNotFound
from swiftlmd.http import sampling, sse
from swiftlmd.http.collect import collect
from swiftlmd.http.context import CONTEXT, RECORD, AppContext
from swiftlmd.http.errors import invalid
from swiftlmd.http.generation import Generation, begin
from swiftlmd.http.ollama.answers import CONTENT_TYPE, Lines, Shape, whole
from swiftlmd.http.ollama.requests import (
    OllamaChat,
    OllamaPrompt,
    OllamaRequest,
    chat_request,
    prompt_request,
)
from swiftlmd.http.openai_json import dumps

_LATEST = ":latest"  # Ollama's name of a model without a tag


async def chat(request: web.Request) -> web.StreamResponse:
    parts = request.app[CONTEXT]
    body = await parts.bodies.read(request, OllamaChat)
    model = await named(request, body.model, body.stream is not False)
    shape = Shape(model, is_chat=True, clock=parts.clock)
    if not body.messages:
        return await _loaded(request, body, shape)
    return await _answered(request, body, await chat_request(body, parts), shape)


async def generate(request: web.Request) -> web.StreamResponse:
    parts = request.app[CONTEXT]
    body = await parts.bodies.read(request, OllamaPrompt)
    model = await named(request, body.model, body.stream is not False)
    shape = Shape(model, is_chat=False, clock=parts.clock)
    if not (body.prompt or body.images or body.suffix):
        return await _loaded(request, body, shape)
    return await _answered(request, body, await prompt_request(body, parts), shape)


async def named(request: web.Request, model: str | None, stream: bool) -> str:
    """The name that was asked for, once a model answers to it. Ollama's clients add `:latest`."""
    if not model:
        raise invalid("model: Field required", "model", code="missing_required_parameter")
    try:
        await begin(request, model, stream)
    except ModelNotFound:
        if not model.endswith(_LATEST):
            raise
        await begin(request, model.removesuffix(_LATEST), stream)
    # Every line repeats the name: one that only a pattern or the default answers to may be endless.
    return model if len(model) <= MAX_NAME else request[RECORD].model


async def _answered(
    request: web.Request, body: OllamaRequest, engine_request: m.GenerateRequest, shape: Shape
) -> web.StreamResponse:
    began_at = time.monotonic()
    warnings = await _warnings(body, request)
    generation = Generation(request, [engine_request])
    if body.stream is not False:
        lines = Lines(shape, generation, warnings)
        return await sse.stream(request, generation, lines, content_type=CONTENT_TYPE)
    [choice] = await collect(generation)
    answer = whole(shape, choice, generation, began_at, warnings)
    return web.json_response(answer, dumps=dumps)


async def _warnings(body: OllamaRequest, request: web.Request) -> list[str]:
    wanted = (body.options.num_ctx if body.options else None) or 0
    context = await _context(request.app[CONTEXT], request[RECORD].model)
    if not context or wanted <= context:
        return []
    return [
        f"options.num_ctx: {wanted} tokens were asked for, the model has {context}; the context is "
        "set at load, with `swiftlmctl load MODEL --context N`"
    ]


async def _context(parts: AppContext, name: str) -> int:
    models = await parts.backend.list_models()
    found = next((model for model in models if model.model == name), m.ModelStatus())
    return found.loaded.context if found.loaded is not None else found.context


async def _loaded(request: web.Request, body: OllamaRequest, shape: Shape) -> web.StreamResponse:
    """A request without a prompt loads the model, or with `keep_alive: 0` unloads it."""
    keep_alive_s = sampling.keep_alive_s(body.keep_alive)
    unloads = keep_alive_s == 0
    if not unloads or await _is_loaded(request):
        # The shortest answer there is: a model that has answered is loaded, and stays as asked.
        shortest = m.GenerateRequest(text=" ", max_tokens=1, n=1, keep_alive_s=keep_alive_s)
        shortest.sampling = m.Sampling(temperature=0.0)
        await collect(Generation(request, [shortest]))
    answer: dict[str, Any] = {**shape.line(""), "done": True}
    answer["done_reason"] = "unload" if unloads else "load"
    return web.json_response(answer, dumps=dumps)


async def _is_loaded(request: web.Request) -> bool:
    status = await request.app[CONTEXT].backend.status()
    name = request[RECORD].model
    return any(found.model == name and found.loaded is not None for found in status.models)
