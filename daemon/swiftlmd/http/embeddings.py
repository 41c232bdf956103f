"""`POST /v1/embeddings`: text or token ids, one or many; floats or base64 of float32."""

from __future__ import annotations

import array
import base64
import sys
from typing import Annotated, Any, ClassVar

from aiohttp import web
from pydantic import Field

from swiftlm_proto import messages as m
from swiftlmd.faults import ServiceError, from_fault
from swiftlmd.http import sampling
from swiftlmd.http.context import CONTEXT, RECORD
from swiftlmd.http.errors import invalid, unsupported
from swiftlmd.http.generation import LEFT, begin, client_name, client_of
from swiftlmd.http.openai_json import dumps
from swiftlmd.http.schema import Body
from swiftlmd.http.tally import OK


class EmbeddingRequest(Body):
    model: str | None = None
    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: str | None = None
    dimensions: Annotated[int, Field(ge=1, le=65536)] | None = None
    ignored: ClassVar[frozenset[str]] = frozenset({"user", "input_type", "truncate", "keep_alive"})


async def embeddings(request: web.Request) -> web.Response:
    parts = request.app[CONTEXT]
    body = await parts.bodies.read(request, EmbeddingRequest)
    record = await begin(request, body.model, False)
    if body.encoding_format not in (None, "float", "base64"):
        raise unsupported("encoding_format: use float or base64", "encoding_format")
    inputs = _inputs(body.input, parts.options.max_embedding_inputs)
    reply = await _embedded(request, m.EmbedRequest(inputs=inputs, dimensions=body.dimensions or 0))
    data = [
        {"object": "embedding", "index": i, "embedding": _encode(e.values, body.encoding_format)}
        for i, e in enumerate(reply.embeddings)
    ]
    usage = {"prompt_tokens": reply.prompt_tokens, "total_tokens": reply.prompt_tokens}
    answer = {"object": "list", "data": data, "model": record.model, "usage": usage}
    return web.json_response(answer, dumps=dumps)


async def _embedded(request: web.Request, question: m.EmbedRequest) -> m.EmbedReply:
    """The engine's vectors; booked like a generation, however it ends."""
    parts, record = request.app[CONTEXT], request[RECORD]
    outcome = LEFT
    try:
        with parts.gate.enter(client_of(request)), parts.metrics.in_flight():
            reply = await parts.backend.embed(
                record.model,
                question,
                request_id=record.request_id,
                client=client_name(request),
            )
        if reply.fault is not None:
            raise from_fault(reply.fault)
        record.usage = m.Usage(prompt_tokens=reply.prompt_tokens)
        outcome = OK
        return reply
    except ServiceError as error:
        outcome = error.code
        raise
    finally:
        parts.metrics.book(record, outcome)


def _inputs(given: str | list[str] | list[int] | list[list[int]], limit: int) -> list[m.EmbedInput]:
    if isinstance(given, str):
        listed: list[Any] = [given]  # Any: one text or one list of ids, told apart below
    elif given and isinstance(given[0], int):
        listed = [given]
    else:
        listed = list(given)
    if not listed:
        raise invalid("input: must not be empty", "input")
    if len(listed) > limit:
        raise invalid(f"input: at most {limit} in one request", "input")
    return [_input(one, f"input.{number}") for number, one in enumerate(listed)]


def _input(one: str | list[int], param: str) -> m.EmbedInput:
    if not one:
        raise invalid(f"{param}: must not be empty", param)
    if isinstance(one, str):
        return m.EmbedInput(text=one)
    ids = [sampling.token_id(i, param) for i in one]
    return m.EmbedInput(token_ids=m.TokenIds(ids=ids))


def _encode(values: bytes, encoding_format: str | None) -> str | list[float]:
    """The engine sends little-endian float32, which is what base64 clients decode."""
    if encoding_format == "base64":
        return base64.b64encode(values).decode("ascii")
    floats = array.array("f", values)
    if sys.byteorder == "big":
        floats.byteswap()
    return floats.tolist()
