"""`POST /api/embed`, and the older `/api/embeddings`."""

from __future__ import annotations

import array
import sys
import time
from typing import Annotated, ClassVar

from aiohttp import web
from pydantic import Field

from swiftlm_proto import messages as m
from swiftlmd.http.context import CONTEXT
from swiftlmd.http.embeddings import embedded, to_inputs
from swiftlmd.http.ollama.generate import named
from swiftlmd.http.ollama.requests import OllamaOptions
from swiftlmd.http.openai_json import dumps
from swiftlmd.http.schema import Body


class EmbedBody(Body):
    model: str | None = None
    input: str | list[str]
    truncate: bool | None = None  # on, unless it is switched off
    dimensions: Annotated[int, Field(ge=1, le=65536)] | None = None
    options: OllamaOptions | None = None
    ignored: ClassVar[frozenset[str]] = frozenset({"keep_alive"})


class EmbeddingsBody(Body):
    model: str | None = None
    prompt: str = ""
    options: OllamaOptions | None = None
    ignored: ClassVar[frozenset[str]] = frozenset({"keep_alive"})


async def embed(request: web.Request) -> web.Response:
    began_at = time.monotonic()
    parts = request.app[CONTEXT]
    body = await parts.bodies.read(request, EmbedBody)
    model = await named(request, body.model, False)
    inputs = to_inputs(body.input, parts.options.max_embedding_inputs) if body.input else []
    reply = m.EmbedReply()
    if inputs:
        question = m.EmbedRequest(inputs=inputs, dimensions=body.dimensions or 0)
        reply = await embedded(request, question, truncate=body.truncate is not False)
    answer = {
        "model": model,
        "embeddings": [_floats(one.values) for one in reply.embeddings],
        "total_duration": int((time.monotonic() - began_at) * 1e9),
        "load_duration": 0,
        "prompt_eval_count": reply.prompt_tokens,
    }
    return web.json_response(answer, dumps=dumps)


async def embeddings(request: web.Request) -> web.Response:
    parts = request.app[CONTEXT]
    body = await parts.bodies.read(request, EmbeddingsBody)
    await named(request, body.model, False)
    vector: list[float] = []
    if body.prompt:
        question = m.EmbedRequest(inputs=[m.EmbedInput(text=body.prompt)])
        reply = await embedded(request, question, truncate=True)
        vector = _floats(reply.embeddings[0].values)
    return web.json_response({"embedding": vector}, dumps=dumps)


def _floats(values: bytes) -> list[float]:
    floats = array.array("f", values)
    if sys.byteorder == "big":
        floats.byteswap()
    return floats.tolist()
