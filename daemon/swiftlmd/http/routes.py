"""Every route in one table: what answers it, and what its body looks like."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import betterproto2
from aiohttp import web

from swiftlmd.http import (
    chat,
    completions,
    embeddings,
    health,
    messages,
    models,
    rerank,
    responses,
    resumable_streams,
)
from swiftlmd.http import tokenize as tokens
from swiftlmd.http.messages_request import MessagesRequest
from swiftlmd.http.ollama import embed, generate, listing
from swiftlmd.http.ollama.requests import OllamaChat, OllamaPrompt
from swiftlmd.http.responses_request import ResponsesRequest
from swiftlmd.http.schema import Body
from swiftlmd.http.security import Scope

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    name: str  # in the log, the metrics and the OpenAPI document
    handler: Handler
    summary: str
    body: type[Body] | None = None
    message: type[betterproto2.Message] | None = None  # what the body is where it is no `Body`
    streams: bool = False
    media: str = "application/json"  # of an answer that is not streamed
    scope: Scope = Scope.USE  # what its callers must be allowed


ROUTES = (
    Route("GET", "/", "root", health.root, "Who answers here"),
    Route("GET", "/health", "health", health.health, "Whether the service is alive"),
    Route("GET", "/ready", "ready", health.ready, "Whether it accepts requests"),
    Route("GET", "/metrics", "metrics", health.metrics, "Prometheus metrics", media="text/plain"),
    Route("GET", "/v1/models", "models", models.list_models, "The models of this machine"),
    Route("GET", "/v1/models/{id:.+}", "model", models.get_model, "One model"),
    Route(
        "POST",
        "/v1/chat/completions",
        "chat",
        chat.chat,
        "OpenAI's chat",
        chat.ChatRequest,
        streams=True,
    ),
    Route(
        "POST",
        "/v1/completions",
        "completions",
        completions.completions,
        "Text continued as it is",
        completions.CompletionRequest,
        streams=True,
    ),
    Route(
        "POST",
        "/v1/responses",
        "responses",
        responses.responses,
        "OpenAI's responses",
        ResponsesRequest,
        streams=True,
    ),
    Route(
        "POST",
        "/v1/responses/input_tokens",
        "input_tokens",
        responses.count_input_tokens,
        "Tokens that a response would read",
        ResponsesRequest,
    ),
    Route(
        "POST",
        "/v1/responses/compact",
        "compact",
        responses.compact,
        "A conversation as its summary",
        ResponsesRequest,
    ),
    Route("GET", "/v1/responses/{id}", "response", responses.get_response, "A kept response"),
    Route(
        "DELETE",
        "/v1/responses/{id}",
        "delete_response",
        responses.delete_response,
        "Forget a response",
    ),
    Route(
        "GET",
        "/v1/responses/{id}/input_items",
        "input_items",
        responses.input_items,
        "What a kept response was asked",
    ),
    Route(
        "POST",
        "/v1/messages",
        "messages",
        messages.messages,
        "Anthropic's messages",
        MessagesRequest,
        streams=True,
    ),
    Route(
        "POST",
        "/v1/messages/count_tokens",
        "count_tokens",
        messages.count_tokens,
        "Tokens that a message would read",
        MessagesRequest,
    ),
    Route(
        "POST",
        "/v1/embeddings",
        "embeddings",
        embeddings.embeddings,
        "Vectors of texts",
        embeddings.EmbeddingRequest,
    ),
    Route(
        "POST",
        "/v1/rerank",
        "rerank",
        rerank.rerank,
        "Documents by how well they answer a query",
        rerank.RerankRequest,
    ),
    Route(
        "GET", "/v1/answers/{key}", "answer", resumable_streams.resume, "Go on with a kept stream"
    ),
    Route(
        "DELETE",
        "/v1/answers/{key}",
        "forget_answer",
        resumable_streams.forget,
        "End a kept stream",
    ),
    Route("GET", "/api/version", "ollama_version", listing.api_version, "Ollama's version"),
    Route("GET", "/api/tags", "ollama_tags", listing.tags, "The models, as Ollama lists them"),
    Route("GET", "/api/ps", "ollama_ps", listing.running, "The loaded models, as Ollama does"),
    Route("POST", "/api/show", "ollama_show", listing.show, "One model", listing.ShowBody),
    Route(
        "POST", "/api/chat", "ollama_chat", generate.chat, "Ollama's chat", OllamaChat, streams=True
    ),
    Route(
        "POST",
        "/api/generate",
        "ollama_generate",
        generate.generate,
        "Ollama's prompts",
        OllamaPrompt,
        streams=True,
    ),
    Route("POST", "/api/embed", "ollama_embed", embed.embed, "Ollama's vectors", embed.EmbedBody),
    Route(
        "POST",
        "/api/embeddings",
        "ollama_embeddings",
        embed.embeddings,
        "Ollama's older vectors, of one text",
        embed.EmbeddingsBody,
    ),
    Route(
        "GET",
        "/tokenizer_info",
        "tokenizer_info",
        tokens.tokenizer_info,
        "Special tokens and chat template of a model",
    ),
    Route("POST", "/tokenize", "tokenize", tokens.tokenize, "Text to tokens", tokens.TokenizeBody),
    Route(
        "POST",
        "/detokenize",
        "detokenize",
        tokens.detokenize,
        "Tokens to text",
        tokens.DetokenizeBody,
    ),
    Route(
        "POST",
        "/apply-template",
        "apply_template",
        tokens.apply_template,
        "The prompt that a chat becomes",
        chat.ChatRequest,
    ),
)
