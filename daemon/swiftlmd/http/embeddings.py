"""`POST /v1/embeddings`: text or token ids, one or many; floats or base64 of float32."""

from __future__ import annotations

import array
import asyncio
import base64
import math
import sys
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from aiohttp import web
from pydantic import Field

from swiftlm_proto import messages as m
from swiftlmd.faults import Kind, ServiceError, from_fault
from swiftlmd.http import sampling
from swiftlmd.http.channel import PIECE_BYTES, Channel
from swiftlmd.http.context import CONTEXT, RECORD
from swiftlmd.http.errors import invalid, unsupported
from swiftlmd.http.generation import LEFT, begin, client_name, client_of
from swiftlmd.http.openai_json import dumps
from swiftlmd.http.schema import Body
from swiftlmd.http.tally import OK

# Vectors of more bytes are written on a thread: 0.2 ms of the event loop for each 4 kB.
_LARGE_BYTES = 1 << 16


class EmbeddingRequest(Body):
    model: str | None = None
    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: str | None = None
    dimensions: Annotated[int, Field(ge=1, le=65536)] | None = None
    truncate: bool | str | None = None  # of other servers; off here unless it is asked for
    ignored: ClassVar[frozenset[str]] = frozenset({"user", "input_type", "keep_alive"})


async def embeddings(request: web.Request) -> web.StreamResponse:
    parts = request.app[CONTEXT]
    body = await parts.bodies.read(request, EmbeddingRequest)
    record = await begin(request, body.model, False)
    if body.encoding_format not in (None, "float", "base64"):
        raise unsupported("encoding_format: use float or base64", "encoding_format")
    inputs = to_inputs(body.input, parts.options.max_embedding_inputs)
    reply = await embedded(
        request,
        m.EmbedRequest(inputs=inputs, dimensions=body.dimensions or 0),
        truncate=_truncates(body.truncate),
    )
    head = {"object": "list", "model": record.model}
    usage = {"prompt_tokens": reply.prompt_tokens, "total_tokens": reply.prompt_tokens}
    vectors = [embedding.values for embedding in reply.embeddings]
    pieces = _pieces(head, vectors, usage, body.encoding_format)
    if sum(map(len, vectors)) <= _LARGE_BYTES:
        return web.Response(body=b"".join(pieces), content_type="application/json")
    return await _sent(request, pieces)


async def _sent(request: web.Request, pieces: Iterator[bytes]) -> web.StreamResponse:
    """A long answer, a piece at a time: each is written on a thread, so that other streams go on,
    and the whole is never in memory."""
    channel = Channel(request, None, {"Content-Type": "application/json"})
    async with channel.open():
        while piece := await asyncio.to_thread(next, pieces, b""):
            await channel.write(piece)
        await channel.end()
    return channel.response


def _pieces(
    head: dict[str, Any],
    vectors: list[bytes],
    usage: dict[str, int],
    encoding_format: str | None,
) -> Iterator[bytes]:
    """The answer as JSON, cut between vectors."""
    shown = _base64 if encoding_format == "base64" else _floats
    waiting = [f'{dumps(head)[:-1]},"data":[']
    num_bytes = 0
    for index, values in enumerate(vectors):
        comma = "," if index else ""
        waiting.append(f'{comma}{{"object":"embedding","index":{index},"embedding":')
        waiting += (shown(values), "}")
        num_bytes += len(waiting[-2])
        if num_bytes >= PIECE_BYTES:
            yield "".join(waiting).encode("ascii")
            waiting, num_bytes = [], 0
    yield "".join([*waiting, f'],"usage":{dumps(usage)}}}']).encode("ascii")


async def embedded(
    request: web.Request, question: m.EmbedRequest, *, truncate: bool = False
) -> m.EmbedReply:
    """The engine's vectors; booked like a generation, however it ends.

    `truncate`: what is longer than the context is cut at its end instead of refused."""
    parts, record = request.app[CONTEXT], request[RECORD]
    outcome = LEFT
    try:
        with parts.gate.enter(client_of(request)), parts.metrics.in_flight():
            try:
                reply = await _vectors(request, question)
            except ServiceError as error:
                if error.kind is not Kind.CONTEXT_TOO_LONG or not truncate:
                    raise
                reply = await _vectors(request, await _cut(request, question))
        record.usage = m.Usage(prompt_tokens=reply.prompt_tokens)
        outcome = OK
        return reply
    except ServiceError as error:
        outcome = error.code
        raise
    finally:
        parts.metrics.book(record, outcome)


async def _vectors(request: web.Request, question: m.EmbedRequest) -> m.EmbedReply:
    record = request[RECORD]
    reply = await request.app[CONTEXT].backend.embed(
        record.model, question, request_id=record.request_id, client=client_name(request)
    )
    if reply.fault is not None:
        raise from_fault(reply.fault)
    return reply


async def _cut(request: web.Request, question: m.EmbedRequest) -> m.EmbedRequest:
    """The same texts as token ids, as many of each as the context holds."""
    backend, name = request.app[CONTEXT].backend, request[RECORD].model
    status = await backend.status()
    loaded = [model.loaded for model in status.models if model.model == name and model.loaded]
    context = loaded[0].context if loaded else 0
    inputs = []
    for one in question.inputs:
        ids = one.token_ids.ids if one.token_ids is not None else None
        if ids is None:
            asked = m.TokenizeRequest(text=one.text or "", add_special_tokens=True)
            reply = await backend.tokenize(name, asked)
            if reply.fault is not None:
                raise from_fault(reply.fault)
            ids = reply.ids
        inputs.append(m.EmbedInput(token_ids=m.TokenIds(ids=list(ids[: context or len(ids)]))))
    return m.EmbedRequest(inputs=inputs, dimensions=question.dimensions)


def _truncates(given: bool | str | None) -> bool:
    """TEI sends a switch, Cohere and others the end that is cut."""
    if isinstance(given, str) and given.upper() not in ("NONE", "END", ""):
        raise unsupported("truncate: use true, false, NONE or END", "truncate")
    return given is True or (isinstance(given, str) and given.upper() == "END")


def to_inputs(
    given: str | list[str] | list[int] | list[list[int]], limit: int
) -> list[m.EmbedInput]:
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


def _base64(values: bytes) -> str:
    return f'"{base64.b64encode(values).decode("ascii")}"'


def _floats(values: bytes) -> str:
    """The engine sends little-endian float32: nine digits give back the very same number."""
    floats = array.array("f", values)
    if sys.byteorder == "big":
        floats.byteswap()
    text = ",".join([f"{value:.9g}" for value in floats])
    if "n" in text:  # JSON has neither nan nor inf
        text = ",".join([f"{v:.9g}" if math.isfinite(v) else "null" for v in floats])
    return f"[{text}]"
