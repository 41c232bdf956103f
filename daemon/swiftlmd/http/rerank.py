"""`POST /v1/rerank`: how well each document answers a query, in the shape of Cohere and Jina.

The model is asked of each document whether it meets the query, as Qwen3-Reranker is, and the score
is what it gives to "yes" against "no". The documents are sequences like any others: they are
scheduled, priced, and share the prefix that the query is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from aiohttp import web

from swiftlm_proto import messages as m
from swiftlmd.faults import from_fault
from swiftlmd.http.collect import Choice, collect
from swiftlmd.http.context import CONTEXT, RECORD
from swiftlmd.http.errors import invalid, unsupported
from swiftlmd.http.generation import Generation, begin
from swiftlmd.http.openai_json import dumps
from swiftlmd.http.schema import Body, Positive

_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".'
)
_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
# Of a document neither word may be likely; so many of the likeliest tokens are looked through.
_TOP = 1000


class RerankDocument(Body):
    text: str


class RerankRequest(Body):
    model: str | None = None
    query: str
    documents: list[str | RerankDocument]
    top_n: Positive | None = None
    return_documents: bool | None = None
    instruction: str | None = None  # what the search is for

    ignored: ClassVar[frozenset[str]] = frozenset({"user", "priority"})
    refused: ClassVar[Mapping[str, str]] = {
        "max_tokens_per_doc": "no document is ever cut",
        "max_chunks_per_doc": "no document is ever cut",
        "truncate_prompt_tokens": "no document is ever cut",
        "rank_fields": "send documents as texts",
    }


async def rerank(request: web.Request) -> web.Response:
    parts = request.app[CONTEXT]
    body = await parts.bodies.read(request, RerankRequest)
    texts = _texts(body, parts.options.max_embedding_inputs)
    await begin(request, body.model, False)
    yes, no = [await _token(request, word) for word in ("yes", "no")]
    generation = Generation(request, [question(body, text) for text in texts])
    choices = await collect(generation)
    scores = [score(choice, yes, no) for choice in choices]
    order = sorted(range(len(texts)), key=lambda index: (-scores[index], index))
    answer = {
        "id": f"rerank-{request[RECORD].request_id}",
        "object": "list",
        "model": request[RECORD].model,
        "results": [
            _result(index, scores[index], texts[index], bool(body.return_documents))
            for index in order[: body.top_n or len(order)]
        ],
        "usage": {
            "prompt_tokens": generation.usage.prompt_tokens,
            "total_tokens": generation.usage.prompt_tokens,
        },
        "meta": {"billed_units": {"search_units": 1}},
    }
    return web.json_response(answer, dumps=dumps)


def _texts(body: RerankRequest, limit: int) -> list[str]:
    if not body.query:
        raise invalid("query: must not be empty", "query")
    if not body.documents:
        raise invalid("documents: must not be empty", "documents")
    if len(body.documents) > limit:
        raise invalid(f"documents: at most {limit} in one request", "documents")
    return [one if isinstance(one, str) else one.text for one in body.documents]


def question(body: RerankRequest, text: str) -> m.GenerateRequest:
    asked = (
        f"<Instruct>: {body.instruction or _INSTRUCTION}\n<Query>: {body.query}\n<Document>: {text}"
    )
    messages = [
        m.Message(role=role, parts=[m.Part(text=part)])
        for role, part in (("system", _SYSTEM), ("user", asked))
    ]
    return m.GenerateRequest(
        chat=m.Chat(messages=messages, enable_thinking=False),
        sampling=m.Sampling(temperature=0.0),
        max_tokens=1,
        n=1,
        top_logprobs=_TOP,
        raw_text=True,
    )


async def _token(request: web.Request, word: str) -> int:
    reply = await request.app[CONTEXT].backend.tokenize(
        request[RECORD].model, m.TokenizeRequest(text=word)
    )
    if reply.fault is not None:
        raise from_fault(reply.fault)
    if len(reply.ids) != 1:
        raise unsupported(f"model: its tokenizer has no token for {word!r}", "model")
    return reply.ids[0]


def score(choice: Choice, yes: int, no: int) -> float:
    """The probability of "yes" among the two; what is not among the likeliest counts as the least
    likely of them."""
    first = next(iter(choice.logprobs), m.TokenLogprob())
    found = {token.token_id: token.logprob for token in (*first.top, first)}
    least = min(found.values(), default=0.0)
    difference = found.get(no, least) - found.get(yes, least)
    return 1.0 / (1.0 + math.exp(min(max(difference, -700.0), 700.0)))


def _result(index: int, score: float, text: str, shows_text: bool) -> dict[str, Any]:
    shown = {"document": {"text": text}} if shows_text else {}
    return {"index": index, "relevance_score": score, **shown}
