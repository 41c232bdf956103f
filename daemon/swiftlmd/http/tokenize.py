"""`/tokenize`, `/detokenize` and `/apply-template`: what a model makes of text, and back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from aiohttp import web

from swiftlm_proto import messages as m
from swiftlmd.faults import from_fault
from swiftlmd.http import sampling
from swiftlmd.http.chat import ChatRequest, to_engine
from swiftlmd.http.context import CONTEXT, RECORD
from swiftlmd.http.errors import invalid
from swiftlmd.http.generation import begin
from swiftlmd.http.openai_json import dumps
from swiftlmd.http.schema import Body, Int
from swiftlmd.store.folder import read_tokenizer


class TokenizeBody(Body):
    """Text under any of the names that servers of this kind use."""

    model: str | None = None
    content: str | None = None
    text: str | None = None
    prompt: str | None = None
    add_special: bool | None = None
    add_special_tokens: bool | None = None

    refused: ClassVar[Mapping[str, str]] = {"with_pieces": "ask /detokenize for single tokens"}


class DetokenizeBody(Body):
    model: str | None = None
    tokens: list[Int]


async def tokenize(request: web.Request) -> web.Response:
    parts = request.app[CONTEXT]
    body = await parts.bodies.read(request, TokenizeBody)
    text = next((t for t in (body.content, body.text, body.prompt) if t is not None), None)
    if text is None:
        raise invalid("content: the text to tokenize is needed", "content")
    record = await begin(request, body.model, False)
    special = bool(body.add_special or body.add_special_tokens)
    reply = await _tokenize(request, m.TokenizeRequest(text=text, add_special_tokens=special))
    answer = {
        "tokens": list(reply.ids),
        "count": len(reply.ids),
        "model": record.model,
    }
    return web.json_response(answer, dumps=dumps)


async def detokenize(request: web.Request) -> web.Response:
    parts = request.app[CONTEXT]
    body = await parts.bodies.read(request, DetokenizeBody)
    record = await begin(request, body.model, False)
    ids = [sampling.token_id(i, "tokens") for i in body.tokens]
    reply = await parts.backend.detokenize(record.model, m.DetokenizeRequest(ids=ids))
    if reply.fault is not None:
        raise from_fault(reply.fault)
    # vLLM's clients read `prompt`, llama.cpp's `content`.
    answer = {"content": reply.text, "prompt": reply.text, "model": record.model}
    return web.json_response(answer, dumps=dumps)


async def tokenizer_info(request: web.Request) -> web.Response:
    """What harnesses ask instead of having the tokenizer's files themselves."""
    backend = request.app[CONTEXT].backend
    record = await begin(request, request.query.get("model"), False)
    models = {model.model: model for model in await backend.list_models()}
    folder = models[record.model].path if record.model in models else ""
    found = await asyncio.to_thread(read_tokenizer, Path(folder)) if folder else {}
    return web.json_response({"model": record.model, **found}, dumps=dumps)


async def apply_template(request: web.Request) -> web.Response:
    """The prompt that a chat request would become, and its token ids."""
    parts = request.app[CONTEXT]
    body = await parts.bodies.read(request, ChatRequest)
    record = await begin(request, body.model, False)
    chat = (await to_engine(body, parts)).chat
    reply = await _tokenize(
        request, m.TokenizeRequest(chat=chat, add_special_tokens=True, with_text=True)
    )
    answer = {
        "prompt": reply.text,
        "tokens": list(reply.ids),
        "count": len(reply.ids),
        "model": record.model,
    }
    return web.json_response(answer, dumps=dumps)


async def _tokenize(request: web.Request, question: m.TokenizeRequest) -> m.TokenizeReply:
    reply = await request.app[CONTEXT].backend.tokenize(request[RECORD].model, question)
    if reply.fault is not None:
        raise from_fault(reply.fault)
    return reply
