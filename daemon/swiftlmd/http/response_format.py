"""`response_format` of chat and `text.format` of Responses, as the engine's constraint."""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field

from swiftlm_proto import messages as m
from swiftlmd.http.errors import invalid, unsupported
from swiftlmd.http.schema import Body


class JsonSchema(Body):
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")  # Any: a JSON schema
    strict: bool | None = None


class ResponseFormat(Body):
    """Chat nests the schema under `json_schema`; Responses puts it beside the type."""

    type: str
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


def constraint(format_: ResponseFormat | None, param: str) -> m.Constraint | None:
    if format_ is None or format_.type == "text":
        return None
    if format_.type == "json_object":
        if format_.schema_ is not None:  # llama.cpp's spelling
            return m.Constraint(json_schema=json.dumps(format_.schema_))
        return m.Constraint(json_object=True)
    if format_.type == "json_schema":
        nested = format_.json_schema
        schema = format_.schema_ if nested is None else nested.schema_
        if schema is None:
            raise invalid(f"{param}: json_schema needs a schema", f"{param}.json_schema.schema")
        strict = format_.strict if nested is None else nested.strict
        return m.Constraint(json_schema=json.dumps(schema), strict=strict is True)
    raise unsupported(
        f"{param}.type: {format_.type[:64]!r} is not supported; "
        "use text, json_object or json_schema",
        f"{param}.type",
    )
