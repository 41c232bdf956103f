"""`/openapi.json`: the OpenAPI document, made from the route table and what its bodies are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from aiohttp import web
from pydantic.json_schema import models_json_schema

from swiftlmd.http.message_schema import schemas
from swiftlmd.http.openai_json import dumps
from swiftlmd.http.routes import Route

_REF = "#/components/schemas/{model}"
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_STATUSES = {
    "400": "The request cannot be served; `param` names the field",
    "401": "No API key, or a wrong one",
    "403": "A foreign Host or Origin",
    "404": "No such model, response or path",
    "413": "The body is too large",
    "429": "Too many requests are waiting; see Retry-After",
    "503": "The service is starting, stopping or without a model; see Retry-After",
    "507": "The model or the prompt does not fit into memory",
}

Json = dict[str, Any]  # Any: JSON

ROUTE_TABLE: web.AppKey[tuple[Route, ...]] = web.AppKey("route_table")


async def openapi(request: web.Request) -> web.Response:
    routes = request.app[ROUTE_TABLE]
    return web.json_response(document(routes), dumps=dumps)


def document(routes: Iterable[Route]) -> Json:
    routes = list(routes)
    bodies = {route.body for route in routes if route.body is not None}
    inputs = sorted(((b, "validation") for b in bodies), key=lambda pair: pair[0].__name__)
    names, definitions = models_json_schema(inputs, ref_template=_REF)  # type: ignore[arg-type]
    messages = schemas({route.message for route in routes if route.message is not None}, _REF)
    paths: dict[str, Json] = {}
    for route in routes:
        schema: Json | None = None
        if route.body is not None:
            schema = names[(route.body, "validation")]
        elif route.message is not None:
            schema = {"$ref": _REF.format(model=route.message.__name__)}
        path = re.sub(r"\{(\w+):[^}]*\}", r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, schema)
    return {
        "openapi": "3.1.0",
        "info": {"title": "swiftlm", "version": "1", "summary": "A local LLM service."},
        "paths": paths,
        "components": {
            "schemas": {**messages, **definitions.get("$defs", {}), "Error": _ERROR},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _operation(route: Route, schema: Json | None) -> Json:
    operation: Json = {
        "operationId": route.name,
        "summary": route.summary,
        "responses": {"200": _answer(route), **_failures()},
    }
    names = re.findall(r"\{(\w+)", route.path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if schema is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _answer(route: Route) -> Json:
    content: Json = {route.media: {}}
    if route.streams:
        content["text/event-stream"] = {}
    return {"description": "Done", "content": content}


def _failures() -> Json:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {"description": text, "content": error} for status, text in _STATUSES.items()}
